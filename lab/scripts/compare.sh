# Measures rsock on the guest's RDMA device beside C's rsockets and bare verbs, and prints the table.
#
#     cargo build --release -p rsock-cli -p rsock-compare -p rsock-capi -p rsock-preload
#     cargo xtask tools
#     cargo xtask lab --limit 3600 lab/scripts/compare.sh [--runs N] [--time N] [--only rdma.stream] [--markdown FILE]
#
# The arguments are those of `rsock compare`. RSOCK_ARTIFACTS says where the commands and the libraries
# are, if not in target/release, and RSOCK_TOOLS where netperf is, if not in target/tools.
target=$(dirname "$LAB_DIR")/target
export RSOCK_TOOLS="${RSOCK_TOOLS:-$target/tools}"
# The commit that the page of --markdown names.
RSOCK_COMMIT="${RSOCK_COMMIT:-$(git -C "$LAB_DIR" describe --always --dirty --exclude='*' 2>/dev/null)}"
export RSOCK_COMMIT
case " $* " in
*" --only "*) ;;
*) set -- --only rdma "$@" ;;
esac
case " $* " in
*" --runs "*) ;;
*) set -- --runs 5 "$@" ;;
esac
# The first 30 to 60 ms of a stream run at half its later rate in an emulated guest.
case " $* " in
*" --time "*) ;;
*) set -- --time 3 "$@" ;;
esac
exec "${RSOCK_ARTIFACTS:-$target/release}/rsock" compare "$@"
