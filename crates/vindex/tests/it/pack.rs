//! `tiles.pack`: a permutation of the weights, whole or not there, and refused by name when it is anything else.

use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use larql_kernels::{Format, MatrixView, RowOrder, Team, TileView, pack_tiles, tile_bytes};
use larql_models::{Checkpoint, StoredRows, StoredTensor};
use larql_vindex::{Level, PACK, Pack, Pieces, Progress, Vindex, VindexError, verify, write_pack};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{folder, go_on, names, run};

/// Bytes before the first matrix, and what every matrix begins at a multiple of.
const PAGE: usize = 4096;
/// Offset, length, digest in hexadecimal, last word.
const TRAILER: usize = 8 + 8 + 64 + 8;

fn team() -> Team {
    Team::new(NonZeroUsize::new(2).unwrap())
}

fn order(rows: StoredRows) -> RowOrder {
    match rows {
        StoredRows::Canonical => RowOrder::Stored,
        StoredRows::Interleaved { d_head } => RowOrder::Interleaved {
            head_dim: d_head as usize,
        },
    }
}

/// The tiles of a matrix, in two pieces.
fn make(tensor: &StoredTensor, write: &mut Pieces<'_, VindexError>) -> Result<(), VindexError> {
    let (rows, cols) = (tensor.n_rows(), tensor.cols());
    let view = MatrixView::new(tensor.format, rows, cols, &tensor.bytes).unwrap();
    let mut tiles = vec![0; tile_bytes(tensor.format, rows, cols).unwrap()];
    pack_tiles(&mut team(), view, order(tensor.rows), &mut tiles);
    let (first, second) = tiles.split_at(tiles.len() / 3);
    write(first)?;
    write(second)
}

fn open(path: &Path) -> (Vindex, Checkpoint) {
    let vindex = Vindex::open(path).unwrap();
    let checkpoint = vindex.checkpoint().unwrap();
    (vindex, checkpoint)
}

fn write(path: &Path) -> u64 {
    let (vindex, checkpoint) = open(path);
    write_pack(&vindex, &checkpoint, &mut make, &mut go_on).unwrap()
}

/// A vindex with a pack.
fn packed(dir: &Path, name: &str) -> PathBuf {
    let out = dir.join(format!("{name}.vindex"));
    run(&folder(dir, name), &out, Level::Inference).unwrap();
    write(&out);
    out
}

fn pack(path: &Path) -> Result<Option<Pack>, VindexError> {
    let (vindex, checkpoint) = open(path);
    Pack::open(&vindex, &checkpoint)
}

/// What opening says of the pack, without the name of the file that it begins with.
fn refusal(path: &Path) -> String {
    let error = pack(path).unwrap_err();
    let hint = error.hint().unwrap();
    let again = format!("run `larql pack {}` to make it again", path.display());
    assert!(
        hint.ends_with(&again) && hint.starts_with("delete it"),
        "{hint}"
    );
    let text = error.to_string();
    let file = format!("{}: ", path.join(PACK).display());
    let problem = text.strip_prefix(&file);
    problem.unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// What `verify` says of the pack, and whether of it alone.
fn finding(path: &Path) -> (bool, String) {
    let report = verify(path, &mut team(), &mut go_on).unwrap();
    let of_pack = report.checks.iter().find(|check| check.name == PACK);
    let check = of_pack.unwrap();
    // The hint of what refuses to be opened.
    let refused = pack(path).err().map(|error| error.hint().unwrap());
    if check.ok || refused.is_some() {
        assert_eq!(check.hint, refused);
    } else {
        let hint = check.hint.as_deref().unwrap();
        assert!(hint.starts_with("delete it, "), "{hint}");
    }
    assert_eq!(
        report.failures().filter(|check| check.name != PACK).count(),
        0
    );
    (check.ok, check.detail.clone())
}

/// The file, its table, and where the table begins.
fn parts(file: &[u8]) -> (Value, usize) {
    let trailer = &file[file.len() - TRAILER..];
    let number = |at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().unwrap()) as usize;
    let (offset, len) = (number(0), number(8));
    assert_eq!(offset + len + TRAILER, file.len());
    (
        serde_json::from_slice(&file[offset..offset + len]).unwrap(),
        offset,
    )
}

fn trailer(offset: u64, len: u64, text: &[u8]) -> Vec<u8> {
    let sha256: String = Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut out = offset.to_le_bytes().to_vec();
    out.extend(len.to_le_bytes());
    out.extend(sha256.as_bytes());
    out.extend(b"larqlend");
    out
}

/// The file with another table, whose digest is right.
fn with_table(file: &[u8], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let (mut table, offset) = parts(file);
    change(&mut table);
    with_text(&file[..offset], table.to_string().as_bytes())
}

fn with_text(body: &[u8], text: &[u8]) -> Vec<u8> {
    let mut out = body.to_vec();
    out.extend(text);
    out.extend(trailer(body.len() as u64, text.len() as u64, text));
    out
}

#[test]
fn tiles_taken_apart_are_the_rows_of_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    // Interleaved rows, tied embeddings, split rows, stacked experts.
    for name in ["llama", "gemma3", "phi3", "qwen3-moe", "kimi-linear"] {
        let out = packed(dir.path(), name);
        let (vindex, checkpoint) = open(&out);
        let pack = Pack::open(&vindex, &checkpoint).unwrap().unwrap();
        assert_eq!(pack.n_bytes(), out.join(PACK).metadata().unwrap().len());
        let roles: Vec<_> = pack.matrices().iter().map(|matrix| matrix.role).collect();
        let mut wanted = checkpoint.roles();
        wanted.retain(|role| checkpoint.tensor(*role).unwrap().shape.len() > 1);
        let mut sorted = roles.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, wanted, "{name}");
        for matrix in pack.matrices() {
            let tensor = checkpoint.tensor(matrix.role).unwrap();
            assert_eq!(matrix.offset % PAGE, 0);
            assert_eq!(matrix.row_order, tensor.rows);
            let view =
                TileView::new(matrix.format, matrix.rows, matrix.cols, &matrix.tiles).unwrap();
            let mut rows = vec![0; tensor.bytes.len()];
            view.unpack_into(order(matrix.row_order), &mut rows);
            assert!(rows == *tensor.bytes, "{name}: {}", matrix.role);
        }
        let n = roles.len();
        let expected = format!("{n} matrices, each with its digest and the bytes of the weights");
        assert_eq!(finding(&out), (true, expected));
        assert_eq!(
            names(&out).iter().filter(|file| *file == PACK).count(),
            1,
            "and nothing besides"
        );
        assert!(!names(&out).iter().any(|file| file.starts_with(".partial")));
    }
}

/// Matrices that are packed must be packed the same by every program that states this layout.
#[test]
fn the_layout_version_stands_for_these_bytes() {
    let mut hasher = Sha256::new();
    let mut next = 1u32;
    for format in Format::ALL {
        for (rows, order) in [
            (13, RowOrder::Stored),
            (20, RowOrder::Interleaved { head_dim: 10 }),
        ] {
            let bytes: Vec<u8> = (0..rows * format.row_bytes(512).unwrap())
                .map(|_| {
                    next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (next >> 24) as u8
                })
                .collect();
            let view = MatrixView::new(*format, rows, 512, &bytes).unwrap();
            let mut tiles = vec![0; tile_bytes(*format, rows, 512).unwrap()];
            pack_tiles(&mut team(), view, order, &mut tiles);
            hasher.update(&tiles);
        }
    }
    let got: String = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        got, "6b4631b48260cbd5ed92acf7e155508772d8255707e4c0464fea82608f2b1ed8",
        "tiles have changed: raise LAYOUT in pack/table.rs, so that packs of before are refused"
    );
}

#[test]
fn without_a_pack_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let out = packed(dir.path(), "llama");
    assert!(pack(&out).unwrap().is_some());
    fs::remove_file(out.join(PACK)).unwrap();
    assert!(pack(&out).unwrap().is_none());
    let report = verify(&out, &mut team(), &mut go_on).unwrap();
    assert!(report.ok() && report.checks.iter().all(|check| check.name != PACK));
}

#[test]
fn a_pack_of_another_model_is_refused_with_both_digests() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (packed(dir.path(), "llama"), packed(dir.path(), "qwen2"));
    fs::copy(other.join(PACK), ours.join(PACK)).unwrap();
    let digest = |path: &Path| Vindex::open(path).unwrap().manifest().digest.clone();
    let expected = format!(
        "tiles of the model with digest {}, this vindex has {}",
        digest(&other),
        digest(&ours)
    );
    assert_eq!(refusal(&ours), expected);
    let (ok, detail) = finding(&ours);
    assert!(!ok && detail.ends_with(&expected), "{detail}");
    // Writing one replaces it.
    write(&ours);
    assert!(pack(&ours).unwrap().is_some());
}

#[test]
fn every_flipped_byte_is_found_and_the_matrix_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = packed(dir.path(), "llama");
    let path = out.join(PACK);
    let good = fs::read(&path).unwrap();
    let (table, offset) = parts(&good);
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        finding(&out)
    };
    for entry in table["matrices"].as_array().unwrap() {
        let number = |field: &str| entry[field].as_u64().unwrap() as usize;
        let (start, len) = (number("offset"), number("bytes"));
        let matrix = format!("`{}`: ", entry["matrix"].as_str().unwrap());
        for at in [start, start + len / 2, start + len - 1] {
            let (ok, detail) = flipped(at);
            assert!(!ok && detail.starts_with(&matrix), "byte {at}: {detail}");
            assert!(detail.contains(", its table says "), "{detail}");
        }
        if !(start + len).is_multiple_of(PAGE) {
            let (ok, detail) = flipped(start + len);
            assert!(!ok && detail.starts_with(&matrix), "{detail}");
            assert!(
                detail.ends_with("behind its tiles, is not zero"),
                "{detail}"
            );
        }
    }
    // The table and what frames it are looked at whenever the file is opened.
    let frame = (0..32).chain([PAGE - 1]);
    let table = (offset..good.len() - TRAILER).step_by(101);
    for at in frame.chain(table).chain(good.len() - TRAILER..good.len()) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        fs::write(&path, bytes).unwrap();
        let text = pack(&out).unwrap_err().to_string();
        if at % 11 == 0 {
            assert_eq!(finding(&out), (false, text), "byte {at}");
        }
    }
}

/// Digests that agree do not help tiles that are not the weights'.
#[test]
fn tiles_of_other_bytes_are_found_though_their_digest_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let out = packed(dir.path(), "llama");
    let path = out.join(PACK);
    let good = fs::read(&path).unwrap();
    let (table, _) = parts(&good);
    let last = table["matrices"].as_array().unwrap().len() - 1;
    for at in [0, last] {
        let entry = &table["matrices"][at];
        let number = |field: &str| entry[field].as_u64().unwrap() as usize;
        let (start, len, rows) = (number("offset"), number("bytes"), number("rows"));
        let mut changed = good.clone();
        changed[start + len / 2] ^= 1;
        let digest: String = Sha256::digest(&changed[start..start + len])
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let changed = with_table(&changed, |table| {
            table["matrices"][at]["sha256"] = json!(digest);
        });
        fs::write(&path, changed).unwrap();
        let (ok, detail) = finding(&out);
        let name = entry["matrix"].as_str().unwrap();
        let row: usize = detail
            .strip_prefix(&format!("`{name}`: row "))
            .and_then(|rest| rest.strip_suffix(" is not the one of the weights"))
            .unwrap_or_else(|| panic!("{detail}"))
            .parse()
            .unwrap();
        assert!(!ok && row < rows, "{detail}");
    }
}

#[test]
fn a_file_that_is_cut_off_is_refused_at_every_length() {
    let dir = tempfile::tempdir().unwrap();
    let out = packed(dir.path(), "llama");
    let path = out.join(PACK);
    let good = fs::read(&path).unwrap();
    let (_, offset) = parts(&good);
    let lengths = [
        0,
        1,
        7,
        8,
        12,
        PAGE - 1,
        PAGE,
        PAGE + TRAILER - 1,
        PAGE + TRAILER,
    ];
    let ends = (1..=TRAILER + 1).map(|n| good.len() - n);
    for len in lengths.into_iter().chain([offset]).chain(ends) {
        fs::write(&path, &good[..len]).unwrap();
        let text = refusal(&out);
        let short = format!("{len} bytes, a pack has at least {}", PAGE + TRAILER);
        assert!(
            text == short || text == "the file is cut off: it does not end as a pack does",
            "{len}: {text}"
        );
    }
    let longer = [&good[..], b"x"].concat();
    fs::write(&path, longer).unwrap();
    assert_eq!(
        refusal(&out),
        "the file is cut off: it does not end as a pack does"
    );
    fs::write(&path, vec![b'x'; good.len()]).unwrap();
    assert_eq!(
        refusal(&out),
        "not a pack of tiles: it begins with other bytes"
    );
}

#[test]
fn a_hostile_table_is_refused_field_by_field() {
    let dir = tempfile::tempdir().unwrap();
    let out = packed(dir.path(), "llama");
    let path = out.join(PACK);
    let good = fs::read(&path).unwrap();
    let (table, offset) = parts(&good);
    let at = |i: usize, field: &str| table["matrices"][i][field].clone();
    let name = at(1, "matrix");
    let name = name.as_str().unwrap();
    let first = at(0, "matrix");
    let (bytes, start) = (at(1, "bytes"), at(1, "offset"));
    let (rows, cols) = (at(1, "rows"), at(1, "cols"));
    let matrix = |field: &'static str, value: Value| {
        move |table: &mut Value| table["matrices"][1][field] = value
    };
    type Change = Box<dyn FnOnce(&mut Value)>;
    let cases: Vec<(Change, String)> = vec![
        (
            Box::new(|table| table["layout"] = json!(3)),
            "tiles of layout 3, this program computes with layout 2".into(),
        ),
        (
            Box::new(|table| table["weights_sha256"] = json!("00")),
            "tiles of weights with digest 00, this vindex has ".into(),
        ),
        (
            Box::new(matrix("offset", json!(0))),
            format!("`{name}`: offset is 0, expected {start}"),
        ),
        (
            Box::new(matrix("offset", at(0, "offset"))),
            format!("`{name}`: offset is {}, expected {start}", at(0, "offset")),
        ),
        (
            Box::new(matrix("offset", json!(u64::MAX - 5))),
            format!("`{name}`: offset is {}, expected {start}", u64::MAX - 5),
        ),
        (
            Box::new(matrix("bytes", json!(u64::MAX))),
            format!("`{name}`: bytes is {}, expected {bytes}", u64::MAX),
        ),
        (
            Box::new(matrix("rows", json!(u64::MAX))),
            format!(
                "`{name}`: shape is {} x {cols}, expected rows of whole blocks that fit memory",
                u64::MAX
            ),
        ),
        (
            Box::new(matrix("cols", json!(1u64 << 60))),
            format!("`{name}`: shape is {rows} x {}, expected", 1u64 << 60),
        ),
        (
            Box::new(matrix("format", json!("Q9_K"))),
            format!("`{name}`: format is `Q9_K`, expected the name of a block format"),
        ),
        (
            Box::new(matrix("format", json!("F16"))),
            format!("`{name}`: format is F16, expected BF16"),
        ),
        (
            Box::new(matrix("row_order", json!({"interleaved": 0}))),
            format!("`{name}`: row_order is 0, expected an even divisor of {rows} rows"),
        ),
        (
            Box::new(matrix("row_order", json!({"interleaved": 7}))),
            format!("`{name}`: row_order is 7, expected an even divisor of {rows} rows"),
        ),
        (
            Box::new(matrix("matrix", json!("layer 7000 attn.q"))),
            format!("matrix 1 is `layer 7000 attn.q`, expected `{name}`"),
        ),
        (
            Box::new(matrix("matrix", first.clone())),
            format!(
                "matrix 1 is `{}`, expected `{name}`",
                first.as_str().unwrap()
            ),
        ),
        (
            Box::new(matrix("hidden", json!(1))),
            "the table cannot be read: unknown field `hidden`".into(),
        ),
        (
            Box::new(matrix("rows", json!(-1))),
            "the table cannot be read: invalid value: integer `-1`".into(),
        ),
        (
            Box::new(|table| table["matrices"] = json!([])),
            format!("the table is at {offset} with "),
        ),
        (
            Box::new(|table| {
                table["matrices"].as_array_mut().unwrap().pop();
            }),
            format!("the table is at {offset} with "),
        ),
    ];
    for (change, expected) in cases {
        fs::write(&path, with_table(&good, change)).unwrap();
        let text = refusal(&out);
        assert!(text.starts_with(&expected), "{text}, expected {expected}");
        assert!(!finding(&out).0, "{text}");
    }
}

#[test]
fn a_table_of_other_matrices_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = packed(dir.path(), "llama");
    let path = out.join(PACK);
    let good = fs::read(&path).unwrap();
    let (table, _) = parts(&good);
    let n = table["matrices"].as_array().unwrap().len();
    // A last matrix that is left out with its tiles.
    let last = &table["matrices"][n - 1];
    let cut = &good[..last["offset"].as_u64().unwrap() as usize];
    let mut shorter = table.clone();
    shorter["matrices"].as_array_mut().unwrap().pop();
    fs::write(&path, with_text(cut, shorter.to_string().as_bytes())).unwrap();
    assert_eq!(refusal(&out), format!("{} matrices, expected {n}", n - 1));
    // The same shape turned round: as many bytes.
    let turned = with_table(&good, |table| {
        let matrices = table["matrices"].as_array_mut().unwrap();
        let whole = |value: &Value| value.as_u64().unwrap().is_multiple_of(8);
        let found = matrices
            .iter_mut()
            .filter(|m| m["row_order"] == "canonical")
            .find(|m| m["rows"] != m["cols"] && whole(&m["rows"]) && whole(&m["cols"]));
        let found = found.unwrap();
        let (rows, cols) = (found["rows"].clone(), found["cols"].clone());
        found["rows"] = cols;
        found["cols"] = rows;
    });
    fs::write(&path, turned).unwrap();
    assert!(refusal(&out).contains(": rows is "), "{}", refusal(&out));
}

#[test]
fn a_hostile_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = packed(dir.path(), "llama");
    let path = out.join(PACK);
    let good = fs::read(&path).unwrap();
    let (table, offset) = parts(&good);
    let text = table.to_string();
    let (at, len) = (offset as u64, text.len() as u64);
    let body = &good[..good.len() - TRAILER];
    for (offset, len, expected) in [
        (
            at,
            u64::MAX,
            "a table of 18446744073709551615 bytes, the limit is 134217728",
        ),
        (
            at,
            (128 << 20) + 1,
            "a table of 134217729 bytes, the limit is 134217728",
        ),
        (at, len + 1, "the table is at "),
        (at + 1, len, "the table is at "),
        (u64::MAX, len, "the table is at "),
        (u64::MAX - len + 1, len, "the table is at "),
        (0, body.len() as u64, "the table is at 0 with "),
        (at + len, 0, "the table has digest "),
    ] {
        let file = [body, &trailer(offset, len, text.as_bytes())].concat();
        fs::write(&path, file).unwrap();
        let found = refusal(&out);
        assert!(found.starts_with(expected), "{offset}, {len}: {found}");
    }
    for text in ["", "[]", "{", "{}", "null", &"[".repeat(100_000)] {
        fs::write(&path, with_text(&good[..offset], text.as_bytes())).unwrap();
        let found = refusal(&out);
        assert!(found.starts_with("the table cannot be read: "), "{found}");
    }
    let mut version = good.clone();
    version[8] = 2;
    fs::write(&path, version).unwrap();
    assert_eq!(
        refusal(&out),
        "pack version 2, this program reads version 1"
    );
}

#[test]
fn what_is_not_a_file_is_an_error_too() {
    let dir = tempfile::tempdir().unwrap();
    let out = packed(dir.path(), "llama");
    let path = out.join(PACK);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = pack(&out).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: a folder, expected a file", path.display())
    );
    let hint = error.hint().unwrap();
    assert!(hint.starts_with("move it away or delete it: "), "{hint}");
    assert_eq!(finding(&out), (false, error.to_string()));
    fs::remove_dir(&path).unwrap();
    // Links are there though nothing can be read, and a pack takes their place.
    #[cfg(unix)]
    for (to, problem) in [
        ("gone", "a symbolic link to a file that is not there"),
        (".", "not a regular file"),
    ] {
        std::os::unix::fs::symlink(dir.path().join(to), &path).unwrap();
        assert_eq!(refusal(&out), problem);
        assert!(!finding(&out).0);
        write(&out);
        assert!(path.symlink_metadata().unwrap().is_file() && finding(&out).0);
        assert!(!dir.path().join("gone").exists());
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn an_interrupted_or_failed_pack_leaves_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("v");
    run(&folder(dir.path(), "llama"), &out, Level::Inference).unwrap();
    let before = names(&out);
    let (vindex, checkpoint) = open(&out);
    let mut n_reports = 0;
    write_pack(&vindex, &checkpoint, &mut make, &mut |_| {
        n_reports += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    let good = fs::read(out.join(PACK)).unwrap();
    for with_pack in [true, false] {
        if !with_pack {
            fs::remove_file(out.join(PACK)).unwrap();
        }
        for stop in [0, 1, n_reports / 2, n_reports - 1] {
            let mut n = 0;
            let mut progress = |_: Progress| {
                n += 1;
                match n > stop {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let error = write_pack(&vindex, &checkpoint, &mut make, &mut progress).unwrap_err();
            assert_eq!(error.to_string(), "interrupted during tiles");
            check_untouched(&out, &before, with_pack.then_some(&good));
        }
        let mut calls = 0;
        let mut failing = |tensor: &StoredTensor, write: &mut Pieces<'_, VindexError>| {
            calls += 1;
            match calls {
                3 => Err(VindexError::NothingToConvert),
                _ => make(tensor, write),
            }
        };
        let error = write_pack(&vindex, &checkpoint, &mut failing, &mut go_on).unwrap_err();
        assert!(matches!(error, VindexError::NothingToConvert), "{error}");
        check_untouched(&out, &before, with_pack.then_some(&good));
    }
}

fn check_untouched(out: &Path, before: &[String], pack: Option<&Vec<u8>>) {
    let mut expected = before.to_vec();
    expected.extend(pack.map(|_| PACK.to_owned()));
    expected.sort();
    assert_eq!(names(out), expected);
    if let Some(pack) = pack {
        assert!(fs::read(out.join(PACK)).unwrap() == *pack);
    }
}

/// The reports end at the bytes of all tiles, and never go back.
#[test]
fn progress_adds_up() {
    let dir = tempfile::tempdir().unwrap();
    let out = packed(dir.path(), "gemma3");
    let (vindex, checkpoint) = open(&out);
    let mut seen = Vec::new();
    write_pack(&vindex, &checkpoint, &mut make, &mut |progress| {
        seen.push((progress.done, progress.total));
        ControlFlow::Continue(())
    })
    .unwrap();
    let pack = Pack::open(&vindex, &checkpoint).unwrap().unwrap();
    let total: u64 = pack.matrices().iter().map(|m| m.tiles.len() as u64).sum();
    assert!(seen.is_sorted() && seen.iter().all(|(_, of)| *of == total));
    assert_eq!(seen.last(), Some(&(total, total)));
    assert!(seen.len() > pack.matrices().len());
    // Looking at it counts every byte twice, and can be stopped at every report.
    seen.clear();
    let look = &mut |progress: Progress| {
        seen.push((progress.done, progress.total));
        ControlFlow::Continue(())
    };
    let found = pack.first_problem(&checkpoint, &mut team(), look).unwrap();
    assert_eq!(found, None);
    let n_reports = seen.len();
    assert!(seen.is_sorted() && n_reports > 2 * pack.matrices().len());
    assert_eq!(seen.last(), Some(&(2 * total, 2 * total)));
    for stop in [0, 1, n_reports - 1] {
        let mut n = 0;
        let mut look = |_: Progress| {
            n += 1;
            match n > stop {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let found = pack.first_problem(&checkpoint, &mut team(), &mut look);
        assert!(matches!(found, Err(VindexError::Interrupted { .. })));
    }
}
