# What a thousand streams at rest cost between two processes, and what they cost a busy one.
#
#     cargo test --release -p rsock-tests --test rdma_many --no-run     (says where PROGRAM is)
#     cargo xtask lab --limit 900 lab/scripts/many.sh PROGRAM
#
# LAB_STREAMS and LAB_RUNS change how many streams, and how often the busy one is measured. Fails if they slow
# it down by more than a tenth, in 5 runs or more.
export LAB_STREAMS="${LAB_STREAMS:-1000}" LAB_RUNS="${LAB_RUNS:-5}"
exec "$1" --nocapture
