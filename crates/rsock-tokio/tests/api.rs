//! The public API is that of `api.txt`, which `UPDATE_API=1 cargo test` writes anew.

#[test]
fn the_public_api_is_that_of_the_snapshot() {
    rsock_api_snapshot::check(env!("CARGO_MANIFEST_DIR"));
}
