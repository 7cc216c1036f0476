//! The blocks of `docs/lql.md` run, one after another in one session.

use std::path::Path;

use super::script::{atlas_session, run};

#[test]
fn every_block_runs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lql.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut session = atlas_session();
    let mut n_blocks = 0;
    for part in text.split("```lql\n").skip(1) {
        let (block, _) = part.split_once("```").expect("a block ends");
        run(&mut session, block).unwrap_or_else(|error| panic!("{block}: {error}"));
        n_blocks += 1;
    }
    assert!(n_blocks == 9, "{n_blocks} blocks");
}
