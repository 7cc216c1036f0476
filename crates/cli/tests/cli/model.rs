//! Commands that run or read a model: run, chat, tokenize, logits, parity, bench, show.

use std::fs;

use serde_json::{Value, json};

use crate::support::{atlas, copy_of_model, larql, model, reference};

const PROMPT: &str = "The capital of France is";

fn run(extra: &[&str]) -> Value {
    let mut args = vec!["run", model(), PROMPT, "--format", "json"];
    args.extend(extra);
    larql(args).json()
}

#[test]
fn run_streams_the_text_alone_to_stdout() {
    let ran = larql(["run", model(), PROMPT, "-n", "5"]).run();
    assert_eq!((ran.code, ran.stdout.as_str()), (0, " Paris.\n"));
    assert!(
        ran.stderr
            .contains("profile fast, 6 prompt tokens, 2 tokens"),
        "{}",
        ran.stderr
    );
    let quiet = larql(["run", model(), PROMPT, "-n", "5", "--quiet"]).run();
    assert_eq!(
        (quiet.stdout.as_str(), quiet.stderr.as_str()),
        (" Paris.\n", "")
    );
}

#[test]
fn run_in_json_is_one_object_with_the_same_text() {
    let made = run(&["-n", "5"]);
    assert_eq!(made["text"], " Paris.");
    assert_eq!(made["tokens"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&made["finish_reason"], &made["profile"]),
        (&json!("stop"), &json!("fast"))
    );
    let one = run(&["-n", "1", "--profile", "exact"]);
    assert_eq!(
        (&one["text"], &one["finish_reason"]),
        (&json!(" Paris"), &json!("length"))
    );
    assert_eq!(one["profile"], "exact");
    let none = run(&["-n", "0"]);
    assert_eq!(
        (&none["text"], &none["tokens"], &none["finish_reason"]),
        (&json!(""), &json!([]), &json!("length"))
    );
}

#[test]
fn a_seed_repeats_and_sampling_options_act() {
    let hot = |seed: &str, extra: &[&str]| {
        let mut args = vec!["-n", "12", "--temp", "3", "--seed", seed];
        args.extend(extra);
        run(&args)["tokens"].clone()
    };
    assert_eq!(hot("42", &[]), hot("42", &[]));
    assert_eq!(
        hot("42", &["--threads", "1"]),
        hot("42", &["--threads", "3"])
    );
    let greedy = run(&["-n", "12"])["tokens"].clone();
    assert_ne!(hot("42", &[]), hot("43", &[]));
    assert_ne!(hot("42", &[]), greedy);
    for limit in [["--top-k", "1"], ["--top-p", "0"], ["--min-p", "1"]] {
        assert_eq!(hot("42", &limit), greedy, "{limit:?}");
    }
    assert_eq!(
        run(&["-n", "12", "--seed", "7"])["tokens"],
        greedy,
        "greedy ignores the seed"
    );
}

#[test]
fn stop_texts_end_and_do_not_appear() {
    let made = run(&["-n", "5", "--stop", "zzz", "--stop", "is."]);
    assert_eq!(made["text"], " Par");
    assert_eq!(made["finish_reason"], "stop_text");
    for (stop, ended_by) in [("zzz", "the model"), ("is.", "a stop text")] {
        let ran = larql(["run", model(), PROMPT, "-n", "5", "--stop", stop]).run();
        let end = format!("ended by {ended_by}\n");
        assert!(ran.stderr.ends_with(&end), "{}", ran.stderr);
    }
    let streamed = larql(["run", model(), PROMPT, "-n", "5", "--stop", "ris"]).run();
    assert_eq!(streamed.stdout, " Pa\n");
    let empty = larql(["run", model(), PROMPT, "--stop", ""]).run();
    assert_eq!(empty.code, 1);
    assert!(
        empty.stderr.contains("a stop text is empty"),
        "{}",
        empty.stderr
    );
}

#[test]
fn a_prompt_comes_from_stdin_and_escapes_only_when_asked() {
    let piped = larql(["run", model(), "-", "-n", "5", "--quiet"])
        .stdin(PROMPT)
        .run();
    assert_eq!(piped.stdout, " Paris.\n");
    let n_tokens = |extra: &[&str]| {
        let mut args = vec!["run", model(), r"a\tb", "-n", "1", "--format", "json"];
        args.extend(extra);
        larql(args).json()["prompt_tokens"].as_u64().unwrap()
    };
    let by_hand = larql(["run", model(), "a\tb", "-n", "1", "--format", "json"]).json();
    assert_eq!(by_hand["prompt_tokens"], n_tokens(&["-e"]));
    assert_ne!(n_tokens(&[]), n_tokens(&["-e"]));
    let wrong = larql(["run", model(), r"a\qb", "-e"]).run();
    assert_eq!(wrong.code, 1);
    assert!(
        wrong
            .stderr
            .starts_with("error: unknown escape `\\q`\nhint: "),
        "{}",
        wrong.stderr
    );
}

/// Without a beginning of sequence an empty prompt has no token, which is an error.
#[test]
fn where_no_text_came_there_is_no_line() {
    let bare = copy_of_model();
    let path = bare.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"] = Value::Null;
    fs::write(&path, tokenizer.to_string()).unwrap();
    let bare = bare.path().to_str().unwrap();
    for (args, code) in [
        (["run", bare, "", "-n", "5"], 1),
        (["run", bare, "-", "-n", "5"], 1),
        (["run", bare, "", "-n", "0"], 1),
        (["run", bare, PROMPT, "-n", "0"], 0),
    ] {
        let ran = larql(args).run();
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{ran:?}");
        assert!(!ran.stderr.is_empty());
    }
}

#[test]
fn bos_stands_once_in_front_and_markers_are_text_unless_asked() {
    let ids = |text: &str, extra: &[&str]| {
        let mut args = vec!["tokenize", model(), text, "--format", "json"];
        args.extend(extra);
        larql(args).json()
    };
    let plain = ids(PROMPT, &[]);
    assert_eq!(plain["ids"][0], 2);
    assert_eq!(
        plain["tokens"],
        json!(["<bos>", "The", " capital", " of", " France", " is"])
    );
    let bare = ids(PROMPT, &["--no-bos"]);
    assert_eq!(
        bare["ids"].as_array().unwrap()[..],
        plain["ids"].as_array().unwrap()[1..]
    );
    assert_eq!(
        ids("<bos>The", &["--special"])["ids"],
        ids("The", &[])["ids"]
    );
    assert_ne!(ids("<bos>The", &[])["ids"], ids("The", &[])["ids"]);
    assert_eq!(ids("", &[])["ids"], json!([2]));
    assert_eq!(ids("", &["--no-bos"])["ids"], json!([]));
}

#[test]
fn logits_are_a_distribution_and_top_cuts_it() {
    let at = |extra: &[&str]| {
        let mut args = vec!["logits", model(), PROMPT, "--format", "json"];
        args.extend(extra);
        larql(args).json()
    };
    let ten = at(&[]);
    assert_eq!(ten["top"].as_array().unwrap().len(), 10);
    assert_eq!(ten["top"][0]["token"], " Paris");
    assert_eq!(ten["profile"], "exact");
    let all = at(&["--top", "100000"]);
    let top = all["top"].as_array().unwrap();
    assert_eq!(top.len(), 2583);
    let total: f64 = top
        .iter()
        .map(|entry| entry["prob"].as_f64().unwrap())
        .sum();
    assert!((total - 1.0).abs() < 1e-9, "{total}");
    assert!(
        top.windows(2)
            .all(|pair| pair[0]["logit"].as_f64() >= pair[1]["logit"].as_f64())
    );
    let fewer = larql(["logits", model(), PROMPT, "--top", "0"]).run();
    assert_eq!((fewer.code, fewer.stdout.as_str()), (1, ""));
}

#[test]
fn run_and_logits_agree_on_the_next_token() {
    for profile in ["exact", "fast"] {
        let top = larql([
            "logits",
            model(),
            PROMPT,
            "--format",
            "json",
            "--top",
            "1",
            "--profile",
            profile,
        ])
        .json();
        assert_eq!(
            run(&["-n", "1", "--profile", profile])["tokens"][0],
            top["top"][0]["id"]
        );
    }
}

/// A copy of a reference checkpoint, with the first bfloat16 of a tensor changed.
fn damaged(family: &str, tensor: &str, change: fn([u8; 2]) -> [u8; 2]) -> tempfile::TempDir {
    let (source, dir) = (reference(family), tempfile::tempdir().unwrap());
    for name in ["config.json", "generation_config.json"] {
        fs::copy(format!("{source}/{name}"), dir.path().join(name)).unwrap();
    }
    let mut weights = fs::read(format!("{source}/model.safetensors")).unwrap();
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize + 8;
    let json: Value = serde_json::from_slice(&weights[8..header]).unwrap();
    let at = json[tensor]["data_offsets"][0].as_u64().unwrap() as usize + header;
    let value = change([weights[at], weights[at + 1]]);
    weights[at..at + 2].copy_from_slice(&value);
    fs::write(dir.path().join("model.safetensors"), weights).unwrap();
    dir
}

#[test]
fn parity_names_the_stage_that_is_not_finite() {
    let golden = format!("{}/golden.safetensors", reference("llama"));
    let dir = damaged("llama", "lm_head.weight", |_| [0x80, 0x7f]);
    let args = ["parity", dir.path().to_str().unwrap(), "--golden", &golden];
    let ran = larql(args).run();
    assert_eq!(ran.code, 1, "{ran:?}");
    let logits = ran
        .stdout
        .lines()
        .find(|line| line.starts_with("logits"))
        .unwrap();
    assert_eq!(
        logits.split_whitespace().collect::<Vec<_>>(),
        ["logits", "inf", "inf"]
    );
    let last = ran.stdout.lines().last().unwrap();
    assert!(last.starts_with("not finite: logits has a value"), "{last}");
    let ran = larql(args.iter().chain(&["--format", "json"])).run();
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (ran.code, &report["first_not_finite"]),
        (1, &json!("logits"))
    );
    assert_eq!(report["max_abs_err"], Value::Null);
}

#[test]
fn an_infinite_logit_is_no_answer_and_a_softcap_does_not_hide_it() {
    let golden = format!("{}/golden.safetensors", reference("gemma2"));
    // Gemma 2 caps its logits, and its head is the embedding, of which this is the row of token 0.
    let dir = damaged("gemma2", "model.embed_tokens.weight", |_| [0x80, 0x7f]);
    let args = ["parity", dir.path().to_str().unwrap(), "--golden", &golden];
    let ran = larql(args.iter().chain(&["--format", "json"])).run();
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (
            ran.code,
            &report["first_not_finite"],
            &report["greedy_match"]
        ),
        (1, &json!("logits"), &json!(false))
    );

    let (atlas, dir) = (larql_testkit::atlas(), tempfile::tempdir().unwrap());
    for entry in fs::read_dir(atlas).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let path = dir.path().join("model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize + 8;
    let json: Value = serde_json::from_slice(&weights[8..header]).unwrap();
    let embedding = &json["model.embed_tokens.weight"];
    let row_bytes = embedding["shape"][1].as_u64().unwrap() as usize * 2;
    // A row of a token that the prompt does not have.
    let at = embedding["data_offsets"][1].as_u64().unwrap() as usize + header - row_bytes;
    for infinite in [[0x80, 0x7f], [0x80, 0xff]] {
        weights[at..at + 2].copy_from_slice(&infinite);
        fs::write(&path, &weights).unwrap();
        for command in ["logits", "run"] {
            let dir = dir.path().to_str().unwrap();
            let ran = larql([command, dir, "The capital of", "--format", "json"]).run();
            assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{command}");
            assert_eq!(ran.error()["kind"], "logit_not_finite", "{command}");
        }
    }
}

#[test]
fn parity_says_equal_and_names_where_a_damaged_copy_differs() {
    let golden = format!("{}/golden.safetensors", reference("qwen2"));
    let same = larql([
        "parity",
        &reference("qwen2"),
        "--golden",
        &golden,
        "--format",
        "json",
    ])
    .json();
    assert_eq!(
        (&same["family"], &same["first_divergence"]),
        (&json!("qwen2"), &Value::Null)
    );
    assert_eq!(same["greedy_match"], true);
    let table = larql(["parity", &reference("qwen2"), "--golden", &golden]).run();
    assert_eq!(
        table.stdout.lines().last().unwrap(),
        "no stage diverges; the greedy continuation is the same"
    );
    assert!(same["max_rel_err"].as_f64().unwrap() < same["tolerance_rel"].as_f64().unwrap());

    let dir = damaged("qwen2", "model.layers.1.mlp.down_proj.weight", |value| {
        [value[0], value[1] ^ 0x40]
    });
    let damaged = dir.path().to_str().unwrap();
    let ran = larql(["parity", damaged, "--golden", &golden, "--format", "json"]).run();
    assert_eq!(ran.code, 1, "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let stage = report["first_divergence"].as_str().unwrap();
    assert!(
        stage == "layer 1 resid_post" || stage == "final_norm",
        "{stage}"
    );
    assert!(report["max_rel_err"].as_f64().unwrap() > 1e-4);
}

#[test]
fn parity_refuses_a_reference_of_another_model() {
    let golden = format!("{}/golden.safetensors", reference("qwen2"));
    let ran = larql([
        "parity",
        &reference("gemma"),
        "--golden",
        &golden,
        "--format",
        "json",
    ])
    .run();
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert_eq!(ran.error()["kind"], "golden");
}

#[test]
fn parity_refuses_a_reference_that_is_not_finite() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(format!("{}/golden.safetensors", reference("llama"))).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    let json: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let at = json["logits"]["data_offsets"][0].as_u64().unwrap() as usize + header + 4 * 7;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let golden = dir.path().join("golden.safetensors");
    fs::write(&golden, bytes).unwrap();
    let golden = golden.to_str().unwrap();
    let args = ["parity", &reference("llama"), "--golden", golden];
    let ran = larql(args.iter().chain(&["--format", "json"])).run();
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("value 7 of `logits` is NaN"), "{message}");
}

#[test]
fn bench_reports_what_scripts_read_and_refuses_nothing_to_do() {
    let report = larql([
        "bench",
        model(),
        "--pp",
        "7",
        "--tg",
        "3",
        "--repeats",
        "1",
        "--threads",
        "1",
        "--batch",
        "2",
        "--format",
        "json",
    ])
    .json();
    for field in [
        "prefill_tok_s",
        "decode_tok_s",
        "weight_bytes_per_token",
        "kv_bytes_per_token",
        "read_gb_s",
    ] {
        assert!(report[field].as_f64().unwrap() > 0.0, "{field}: {report}");
    }
    // A machine that has changed meanwhile gives no fraction, and the reason.
    for (fraction, refused) in [
        ("roofline_fraction", "roofline_refused"),
        ("multiply_fraction", "multiply_refused"),
    ] {
        match report[fraction].as_f64() {
            Some(value) => assert!(value > 0.0 && report[refused].is_null(), "{report}"),
            None => assert!(report[refused].is_string(), "{report}"),
        }
    }
    let batch = &report["batch"];
    assert_eq!(batch["sequences"], 2);
    match batch["speedup"].as_f64() {
        Some(value) => assert!(
            value > 0.0 && batch["speedup_refused"] == Value::Null,
            "{batch}"
        ),
        None => assert_eq!(batch["speedup_refused"], "drifted", "{batch}"),
    }
    assert!(batch.as_object().unwrap().contains_key("speedup_refused"));
    let classes = report["ledger"]["decode"]["classes"].as_array().unwrap();
    let names: Vec<&str> = classes
        .iter()
        .map(|line| line["class"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["attention", "recurrent", "ffn", "head", "other"]);
    assert_eq!(
        (&report["threads"], &report["profile"]),
        (&json!(1), &json!("fast"))
    );
    for (option, value, wanted) in [("--pp", "0", "1"), ("--batch", "257", "1 to 256")] {
        let ran = larql(["bench", model(), option, value]).run();
        assert_eq!(ran.code, 1);
        let message =
            format!("'{value}' for '{option} <N>': expected a whole number from {wanted}");
        assert!(ran.stderr.contains(&message), "{}", ran.stderr);
    }
}

#[test]
fn bench_says_in_words_what_the_numbers_come_to() {
    let args = ["bench", model(), "--pp", "2", "--tg", "1", "--repeats", "1"];
    let printed = larql(args.iter().chain(&["--batch", "3"])).run().stdout;
    let begins = |line: &str| printed.lines().any(|printed| printed.starts_with(line));
    for line in [
        "prefill ",
        "decode ",
        "decode x 3 ",
        "a decoded token reads ",
        "this machine ",
        "3 sequences decode ",
    ] {
        assert!(begins(line), "{line}: {printed}");
    }
    // One line per class that ran: Atlas has no recurrent mixer.
    let head = printed.lines().filter(|line| line.contains(" head "));
    assert_eq!(head.count(), 2, "{printed}");
    assert!(!printed.contains("recurrent"), "{printed}");
    let printed = larql(args).run().stdout;
    assert!(!printed.contains("sequences decode"), "{printed}");
    // The sentence has the unit of the columns.
    let sentence = printed.lines().find(|line| line.starts_with("a decoded"));
    let sentence = sentence.unwrap();
    assert!(sentence.contains(" MB of weights and 0.0"), "{sentence}");
    assert!(sentence.contains(" MB of keys, "), "{sentence}");
    for (threads, counted) in [("1", ", 1 thread, "), ("2", ", 2 threads, ")] {
        let noted = larql(args.iter().chain(&["--threads", threads])).run();
        assert!(noted.stderr.contains(counted), "{}", noted.stderr);
    }
}

#[test]
fn show_reads_headers_and_says_what_there_is() {
    let shown = larql(["show", model(), "--format", "json"]).json();
    assert_eq!(
        (&shown["kind"], &shown["family"]),
        (&json!("huggingface"), &json!("gemma3"))
    );
    assert_eq!(
        (&shown["layers"], &shown["features"]),
        (&json!(4), &json!(3072))
    );
    assert_eq!(
        shown["stored_types"]["BF16"]["parameters"],
        shown["parameters"]
    );
    assert_eq!(shown["spec"]["layers"].as_array().unwrap().len(), 4);
    // Weights of another content change nothing: they are not read.
    let dir = tempfile::tempdir().unwrap();
    fs::copy(atlas().join("config.json"), dir.path().join("config.json")).unwrap();
    let mut weights = fs::read(atlas().join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize + 8;
    weights[header..].fill(0xff);
    fs::write(dir.path().join("model.safetensors"), weights).unwrap();
    let path = dir.path().to_str().unwrap();
    let mut zeroed = larql(["show", path, "--format", "json"]).json();
    zeroed["model"] = shown["model"].clone();
    assert_eq!(zeroed, shown);
}

#[test]
fn chat_needs_a_template_and_keeps_markers_apart() {
    let ran = larql(["chat", model(), "--format", "json"])
        .stdin("hello\n")
        .run();
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert_eq!(ran.error()["kind"], "no_chat_template");

    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(atlas()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    let with_template = dir.path().to_str().unwrap();
    let lines = "The capital of France is\n/clear\n\nThe capital of Italy is\n/exit\nThe capital of Spain is\n";
    let ran = larql(["chat", with_template, "-n", "4", "--quiet"])
        .stdin(lines)
        .run();
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (0, " Paris.\n Rome.\n", "")
    );
    let json = larql([
        "chat",
        with_template,
        "-n",
        "4",
        "--format",
        "json",
        "--quiet",
    ])
    .stdin(lines)
    .run();
    let answers: Vec<Value> = json
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), 2);
    assert_eq!(
        (&answers[1]["text"], &answers[1]["finish_reason"]),
        (&json!(" Rome."), &json!("stop"))
    );
    assert_eq!(answers[1]["prompt_tokens"], 6);
    assert!(answers[1]["tokens_per_s"].is_number());
    let unknown = larql(["chat", with_template]).stdin("/nothing\n").run();
    assert_eq!(unknown.code, 1);
    let told = larql(["chat", with_template, "-n", "1"]).stdin(lines).run();
    assert_eq!(told.stderr.matches("profile").count(), 1, "{}", told.stderr);
    let end = "note: 1 token, ended by the token limit\n";
    assert_eq!(told.stderr.matches(end).count(), 2, "{}", told.stderr);
}

#[test]
fn a_template_that_refuses_is_said_to_be_the_one_that_speaks() {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(atlas()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
                    {% for m in messages %}{{ m.content }}{% if m.content == 'x' %}{{ raise_exception('no x') }}{% endif %}{% endfor %}";
    fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    let path = dir.path().to_str().unwrap();
    let refused = |args: &[&str], line: &str| {
        let ran = larql(
            ["chat", path, "--format", "json", "--quiet"]
                .iter()
                .chain(args),
        )
        .stdin(line)
        .run();
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
        ran.error()
    };
    let error = refused(&["--system", "Be brief."], "hello\n");
    assert_eq!(
        error["message"],
        "the model's chat template refuses this conversation: no system"
    );
    assert!(
        error["hint"].as_str().unwrap().contains("--system"),
        "{error}"
    );
    let error = refused(&[], "x\n");
    assert_eq!(
        error["message"],
        "the model's chat template refuses this conversation: no x"
    );
    assert_eq!(error["hint"], Value::Null);
}

#[test]
fn show_and_stats_say_the_same_under_the_same_names() {
    for family in ["qwen3-next", "deepseek-v3", "gpt2"] {
        let model = reference(family);
        let shown = larql(["show", &model, "--format", "json"]).json();
        let stats = larql(["lql", "STATS", "--vindex", &model, "--format", "json"]).json();
        let mut n_shared = 0;
        for row in stats[0]["rows"].as_array().unwrap() {
            let (name, value) = (row[0].as_str().unwrap(), &row[1]);
            let per_type = name
                .strip_prefix("weight_bytes ")
                .map(|name| &shown["stored_types"][name]["bytes"]);
            if let Some(same) = per_type.or_else(|| shown.get(name)) {
                assert_eq!(same, value, "{family}: {name}");
                n_shared += 1;
            } else {
                let of_session = ["tokenizer", "digest", "source_digest", "profile", "threads"];
                assert!(of_session.contains(&name), "{family}: {name}");
            }
        }
        assert!(n_shared > 14, "{family}: {n_shared}");
        let table = larql(["show", &model]).run().stdout;
        for name in [
            "attention",
            "d_head",
            "d_vocab",
            "n_ctx",
            "tensors",
            "features",
        ] {
            let value = match &shown[name] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let line = table.lines().find(|line| line.starts_with(name)).unwrap();
            assert!(line.ends_with(&value), "{family}: {line}");
        }
    }
}

#[test]
fn paths_with_spaces_and_other_scripts_work_relative_and_with_a_slash() {
    let dir = tempfile::tempdir().unwrap();
    let name = "\u{6a21}\u{578b} \u{e9}";
    fs::create_dir(dir.path().join(name)).unwrap();
    for entry in fs::read_dir(atlas()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(name).join(entry.file_name())).unwrap();
    }
    let slashed = format!("{name}/");
    let ran = larql(["run", &slashed, PROMPT, "-n", "2", "--quiet"])
        .dir(dir.path())
        .run();
    assert_eq!((ran.code, ran.stdout.as_str()), (0, " Paris.\n"), "{ran:?}");
}
