//! Writes `tests/corpus` anew from the cases of the tests:
//! `cargo run -p larql-formats --example make_corpus`.

use std::path::Path;

#[path = "../tests/support/mod.rs"]
mod support;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    for (kind, cases) in [
        ("gguf", support::gguf::cases()),
        ("safetensors", support::safetensors::cases()),
    ] {
        let folder = corpus.join(kind);
        std::fs::create_dir_all(&folder)?;
        for case in cases {
            std::fs::write(folder.join(case.name), case.bytes)?;
        }
    }
    Ok(())
}
