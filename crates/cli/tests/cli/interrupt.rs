//! What Ctrl-C says, and what two presses of it leave behind.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{model, reference};

/// Rows of the embedding and the head: so many that encoding them takes a while.
const ROWS: u64 = 1 << 19;
/// No machine needs so long to begin.
const START_MAX: Duration = Duration::from_secs(60);

/// The reference model with a vocabulary of [`ROWS`], whose weights are holes in a file.
fn large(dir: &Path) {
    let from = reference("llama");
    let from = Path::new(&from);
    let text = fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["vocab_size"] = json!(ROWS);
    fs::write(dir.join("config.json"), config.to_string()).unwrap();

    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let end = 8 + usize::try_from(len).unwrap();
    let mut header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
    let mut at = 0;
    for (name, tensor) in header.as_object_mut().unwrap() {
        if name == "__metadata__" {
            continue;
        }
        if name.ends_with("embed_tokens.weight") || name == "lm_head.weight" {
            tensor["shape"][0] = json!(ROWS);
        }
        let values: u64 = (tensor["shape"].as_array().unwrap().iter())
            .map(|n| n.as_u64().unwrap())
            .product();
        tensor["dtype"] = json!("BF16");
        tensor["data_offsets"] = json!([at, at + 2 * values]);
        at += 2 * values;
    }
    let header = header.to_string();
    let mut file = fs::File::create_new(dir.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + at).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_second_ctrl_c_leaves_nothing_behind() {
    let model = TempDir::new().unwrap();
    large(model.path());
    let source = model.path().to_str().unwrap();
    for args in [
        &["quantize", source, "q8_0", "-o", "o.gguf"][..],
        &["extract", source, "--quant", "q8_0", "-o", "o.vindex"],
    ] {
        let out = TempDir::new().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_larql"))
            .args(args)
            .args(["--quiet", "--threads", "1"])
            .current_dir(out.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while names(out.path()).is_empty() {
            assert!(begin.elapsed() < START_MAX, "{args:?} writes nothing");
            sleep(Duration::from_millis(2));
        }
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        kill(pid, Signal::SIGINT).unwrap();
        // The first one has to be seen apart from the second.
        sleep(Duration::from_millis(2));
        kill(pid, Signal::SIGINT).unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{args:?}: {stderr}");
        assert_eq!(names(out.path()), Vec::<String>::new(), "{args:?}");
        assert!(stderr.contains("interrupted"), "{args:?}: {stderr}");
    }
}

/// Presses Ctrl-C while nothing runs that could be ended: the program reads its prompt.
#[test]
fn an_end_without_work_in_hand_is_told_too() {
    for (format, told) in [
        ("table", "error: interrupted\n"),
        (
            "json",
            "{\"error\":{\"kind\":\"interrupted\",\"message\":\"interrupted\",\"hint\":null}}\n",
        ),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_larql"))
            .args(["run", model(), "-", "--format", format])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // More than a pipe holds: somebody reads.
        stdin.write_all(&[b'a'; 1 << 20]).unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        kill(pid, Signal::SIGINT).unwrap();
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), stderr.as_str()),
            (Some(130), told),
            "{format}"
        );
        assert_eq!(output.stdout, b"", "{format}");
    }
}
