//! Families with latent attention, recurrent mixers, parallel streams and shared keys and values, over the parity fixtures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use larql_models::Checkpoint;
use larql_models::to_gguf::{GgufContent, GgufPlan};
use larql_testkit::parity_fixture;

const NAMES: &[&str] = &[
    "deepseek-v2",
    "deepseek-v3",
    "kimi-linear",
    "qwen3-next",
    "gemma3n",
    "gemma4-dense",
    "gemma4-moe",
    "gemma4-e",
];

#[test]
fn probe() {
    let mut bad = vec![];
    for name in NAMES {
        if std::env::var("FAMB").is_ok_and(|d| !std::path::PathBuf::from(d).join(name).exists()) { continue }
        let source = match Checkpoint::open(&std::env::var("FAMB").map_or(parity_fixture(name), |d| std::path::PathBuf::from(d).join(name))) { Ok(s) => s, Err(e) => { bad.push(format!("{name}: {e}")); continue } };
        let plan = match GgufPlan::new(&source, GgufContent::Whole) { Ok(s) => s, Err(e) => { bad.push(format!("{name}: plan {e}")); continue } };
        for d in plan.differences() { bad.push(format!("{name}: {d}")); }
        std::fs::create_dir_all(std::env::var("FAMB").map_or("/tmp/famB-gguf".to_owned(), |d| d + "-gguf")).unwrap();
        let path = std::path::PathBuf::from(format!("{}/{name}.gguf", std::env::var("FAMB").map_or("/tmp/famB-gguf".to_owned(), |d| d + "-gguf")));
        plan.write(&source, std::fs::File::create(&path).unwrap()).unwrap();
        for (what, path) in [("own", path), ("ref", format!("/tmp/pyref/ref-gguf/{name}.bf16.gguf").into())] {
            if !path.exists() || (what == "ref" && std::env::var("FAMB").is_ok()) { continue }
            match Checkpoint::open(&path) {
                Err(e) => bad.push(format!("{name}: {what}: open {e}")),
                Ok(back) => {
                    if back.spec() != source.spec() { bad.push(format!("{name}: {what}: spec\n{:?}\n{:?}", source.spec(), back.spec())); continue }
                    for role in source.roles() {
                        if source.tensor(role).unwrap().to_f32() != back.tensor(role).unwrap().to_f32() { bad.push(format!("{name}: {what}: {role}")); }
                    }
                }
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
