//! Atlas, the small model that comes with the program: 3.8 M parameters, 792 facts of geography and chemistry.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use flate2::read::GzDecoder;

use crate::error::CliError;

/// Folder of the embedded files.
macro_rules! atlas {
    ($name:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/atlas/", $name)
    };
}

/// The weights, compressed.
const WEIGHTS: &[u8] = include_bytes!(atlas!("model.safetensors.gz"));
/// The other files of the checkpoint.
const TEXTS: [(&str, &str); 4] = [
    ("config.json", include_str!(atlas!("config.json"))),
    ("tokenizer.json", include_str!(atlas!("tokenizer.json"))),
    (
        "tokenizer_config.json",
        include_str!(atlas!("tokenizer_config.json")),
    ),
    (
        "generation_config.json",
        include_str!(atlas!("generation_config.json")),
    ),
];

/// Writes the checkpoint into a new folder.
///
/// # Errors
/// If the folder exists or cannot be written.
pub(crate) fn unpack(folder: &Path) -> Result<(), CliError> {
    write(folder).map_err(|source| {
        CliError::failure(
            "output",
            format!(
                "{}: the embedded model cannot be unpacked: {source}",
                folder.display()
            ),
        )
    })
}

fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    for (name, text) in TEXTS {
        fs::write(folder.join(name), text)?;
    }
    let mut weights = File::create(folder.join("model.safetensors"))?;
    io::copy(&mut GzDecoder::new(WEIGHTS), &mut weights)?;
    weights.flush()
}
