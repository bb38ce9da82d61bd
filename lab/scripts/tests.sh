# Runs test programs, all of them, with the tests that need an RDMA device; fails if one does.
status=0
for program; do
    "$program" --ignored --test-threads="${LAB_THREADS:-2}" || status=$?
done
exit $status
