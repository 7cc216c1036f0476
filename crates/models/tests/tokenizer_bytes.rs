//! Byte-level vocabularies built by hand, as GGUF and as tokenizer.json.
#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use larql_models::tokenizer::{
    Bos, EncodeSpecial, GgufVocab, HfTokenizerConfig, SpecialText, Tokenizer, TokenizerError,
    TokenizerWarning,
};
use serde_json::{Value, json};

/// Bytes of U+1F60A in the byte alphabet: F0 9F 98 8A.
const SMILE: [&str; 4] = ["\u{f0}", "\u{141}", "\u{13a}", "\u{12c}"];

fn vocab() -> GgufVocab {
    let mut tokens: Vec<String> = ["a", "b", "\u{120}", "\u{10a}", "ab", "\u{120}ab"] // 0..=5
        .map(String::from)
        .to_vec();
    tokens.extend(SMILE.map(String::from)); // 6..=9
    tokens.extend(["1", "2", "12"].map(String::from)); // 10..=12
    tokens.extend(["<|end|>", "<tool>", "<", ">", "|", "e", "n", "d"].map(String::from)); // 13..=20
    let mut token_types = vec![1; tokens.len()];
    token_types[13] = 3;
    token_types[14] = 4;
    GgufVocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens: tokens.iter().collect(),
        scores: None,
        token_types: Some(token_types),
        merges: Some(["a b", "\u{120} ab", "1 2"].map(String::from).to_vec()),
        bos: Some(13),
        eos: Some(13),
        eot: None,
        unk: None,
        pad: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
        chat_template: None,
        name: None,
    }
}

fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer
        .encode(text, EncodeSpecial::Plain, Bos::Never)
        .unwrap()
}

#[test]
fn merges_stay_inside_words_and_follow_the_named_rule() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    assert_eq!(plain(&t, "ab ab\nab12"), [4, 5, 3, 4, 12]);
    assert_eq!(plain(&t, "ab  ab"), [4, 2, 5]);
    let mut digits = vocab();
    digits.pre = Some("qwen2".into());
    let t = Tokenizer::from_gguf(digits).unwrap();
    assert_eq!(plain(&t, "ab ab\nab12"), [4, 5, 3, 4, 10, 11]);
}

#[test]
fn markers_and_user_defined_tokens() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    assert_eq!(plain(&t, "a<tool>b"), [0, 14, 1]);
    assert_eq!(plain(&t, "a<|end|>"), [0, 15, 17, 18, 19, 20, 17, 16]);
    let markers = t
        .encode("a<|end|>", EncodeSpecial::Markers, Bos::Never)
        .unwrap();
    assert_eq!(markers, [0, 13]);
    assert_eq!(t.decode(&markers, SpecialText::Skip), "a");
    assert_eq!(t.decode(&markers, SpecialText::Keep), "a<|end|>");
}

#[test]
fn markers_count_only_inside_the_scaffold() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    let text = "a<|end|>b<|end|>";
    let ids = t.encode_scaffold(text, &[0..1, 9..16], Bos::Never).unwrap();
    assert_eq!(ids, [0, 15, 17, 18, 19, 20, 17, 16, 1, 13]);
    // A marker that is half typed and half written is not one.
    for scaffold in [[0..9, 10..16], [0..8, 9..15]] {
        let ids = t.encode_scaffold(text, &scaffold, Bos::Never).unwrap();
        assert_eq!(ids, [0, 13, 1, 15, 17, 18, 19, 20, 17, 16]);
    }
}

#[test]
fn an_emoji_of_four_tokens_streams_as_one_character() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    let ids = plain(&t, "a\u{1f60a}");
    assert_eq!(ids, [0, 6, 7, 8, 9]);
    let mut stream = t.stream();
    let pushed: Vec<_> = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(
        pushed,
        [
            Some("a".to_owned()),
            None,
            None,
            None,
            Some("\u{1f60a}".to_owned())
        ]
    );
    let bytes: Vec<u8> = ids.iter().flat_map(|id| t.token_bytes(*id)).collect();
    assert_eq!(bytes, "a\u{1f60a}".as_bytes());
}

#[test]
fn bos_is_off_unless_the_file_or_the_family_says_so() {
    let encode = |v: GgufVocab| {
        let t = Tokenizer::from_gguf(v).unwrap();
        t.encode("ab", EncodeSpecial::Plain, Bos::Model).unwrap()
    };
    assert_eq!(encode(vocab()), [4]);
    let mut asked = vocab();
    asked.add_bos = Some(true);
    assert_eq!(encode(asked), [13, 4]);
    let mut family = vocab();
    family.pre = Some("llama-bpe".into());
    assert_eq!(encode(family), [13, 4]);
}

#[test]
fn a_character_without_tokens_is_an_error_and_not_dropped() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    let error = t
        .encode("a zb", EncodeSpecial::Plain, Bos::Never)
        .unwrap_err();
    assert!(
        matches!(error, TokenizerError::Unrepresentable { .. }),
        "{error}"
    );
}

#[test]
fn gguf_without_a_known_splitting_rule_or_merges_is_refused() {
    let mut v = vocab();
    v.pre = Some("gpt-9".into());
    let error = Tokenizer::from_gguf(v).unwrap_err().to_string();
    assert!(
        error.starts_with("pre-tokenizer `gpt-9` is not known, known: default, gpt-2, "),
        "{error}"
    );
    let mut v = vocab();
    v.pre = None;
    let error = Tokenizer::from_gguf(v).unwrap_err();
    assert!(matches!(error, TokenizerError::MissingPre));
    let mut v = vocab();
    v.merges = None;
    let error = Tokenizer::from_gguf(v).unwrap_err();
    assert!(matches!(error, TokenizerError::MissingMerges));
    let mut v = vocab();
    v.merges.as_mut().unwrap()[1] = "ab".into();
    let error = Tokenizer::from_gguf(v).unwrap_err().to_string();
    assert_eq!(error, "merge 1 `ab` is not two pieces separated by a space");
    let mut v = vocab();
    v.merges.as_mut().unwrap()[1] = "a zz".into();
    let error = Tokenizer::from_gguf(v).unwrap_err();
    assert!(matches!(error, TokenizerError::Backend { .. }));
}

#[test]
fn the_written_file_gives_the_same_ids() {
    let t = Tokenizer::from_gguf(vocab()).unwrap();
    let json = t.to_json().unwrap();
    let again = Tokenizer::restore(json.as_bytes(), t.special().clone(), None).unwrap();
    for text in ["ab  ab\n12", "a<tool>b<|end|>", "\u{1f60a}", ""] {
        let ids = plain(&t, text);
        assert_eq!(plain(&again, text), ids, "{text:?}");
        assert_eq!(again.decode(&ids, SpecialText::Keep), text);
    }
}

fn no_files() -> HfTokenizerConfig {
    HfTokenizerConfig {
        tokenizer_config: None,
        generation_config: None,
        config: None,
        chat_template: None,
    }
}

/// The synthetic vocabulary as a checkpoint's tokenizer.json.
fn file() -> Value {
    let json = Tokenizer::from_gguf(vocab()).unwrap().to_json().unwrap();
    serde_json::from_str(&json).unwrap()
}

fn load(file: &Value, cfg: &HfTokenizerConfig) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_json(file.to_string().as_bytes(), cfg)
}

#[test]
fn stop_ids_come_from_all_files_without_duplicates() {
    let cfg = HfTokenizerConfig {
        tokenizer_config: Some(json!({ "eos_token": { "content": "<tool>" } })),
        generation_config: Some(json!({ "eos_token_id": [13, 14], "pad_token_id": 3 })),
        config: Some(json!({ "text_config": { "eos_token_id": 5 }, "bos_token_id": null })),
        chat_template: None,
    };
    let t = load(&file(), &cfg).unwrap();
    assert_eq!(t.special().eos, [14, 13, 5]);
    assert_eq!(t.special().pad, Some(3));
    assert_eq!(t.special().bos, None);
    assert!(!t.special().add_bos);
}

#[test]
fn the_post_processor_and_the_configuration_decide_about_bos() {
    let mut with_template = file();
    with_template["post_processor"] = json!({
        "type": "Sequence",
        "processors": [
            { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true },
            {
                "type": "TemplateProcessing",
                "single": [
                    { "SpecialToken": { "id": "<|end|>", "type_id": 0 } },
                    { "SpecialToken": { "id": "<tool>", "type_id": 0 } },
                    { "Sequence": { "id": "A", "type_id": 0 } },
                    { "SpecialToken": { "id": "<|end|>", "type_id": 0 } }
                ],
                "pair": [
                    { "Sequence": { "id": "A", "type_id": 0 } },
                    { "Sequence": { "id": "B", "type_id": 1 } }
                ],
                "special_tokens": {
                    "<|end|>": { "id": "<|end|>", "ids": [13], "tokens": ["<|end|>"] },
                    "<tool>": { "id": "<tool>", "ids": [14], "tokens": ["<tool>"] }
                }
            }
        ]
    });
    let ids = |t: &Tokenizer, text| t.encode(text, EncodeSpecial::Markers, Bos::Model).unwrap();
    let t = load(&with_template, &no_files()).unwrap();
    assert_eq!(t.special().prefix, [13, 14]);
    assert_eq!(ids(&t, "ab"), [13, 14, 4]);
    assert_eq!(ids(&t, "<|end|><tool>ab"), [13, 14, 4]);
    assert_eq!(t.warnings(), [TokenizerWarning::EndLeftOut]);
    assert!(t.special().add_eos);
    assert_eq!(t.special().eos, [13]);
    let mut cfg = no_files();
    // Only some classes follow the switch.
    for (class, follows_key) in [
        ("LlamaTokenizerFast", true),
        ("GemmaTokenizer", true),
        ("PreTrainedTokenizerFast", false),
        ("Qwen2Tokenizer", false),
    ] {
        for (file, add_bos, by_key, by_file) in [
            (&with_template, false, vec![4], vec![13, 14, 4]),
            (&file(), true, vec![13, 4], vec![4]),
        ] {
            cfg.tokenizer_config = Some(json!({
                "add_bos_token": add_bos, "bos_token": "<|end|>", "tokenizer_class": class,
            }));
            let t = load(file, &cfg).unwrap();
            let expected = if follows_key { by_key } else { by_file };
            assert_eq!(ids(&t, "ab"), expected, "{class}");
            let warning = TokenizerWarning::SwitchMismatch {
                key: "add_bos_token",
                stated: add_bos,
                class: Some(class.to_owned()),
                follows_key,
            };
            assert!(t.warnings().contains(&warning), "{:?}", t.warnings());
        }
    }
    cfg.tokenizer_config =
        Some(json!({ "add_bos_token": true, "tokenizer_class": "LlamaTokenizer" }));
    let error = load(&file(), &cfg).unwrap_err();
    assert!(matches!(error, TokenizerError::MissingBos));
    cfg.tokenizer_config = Some(json!({ "add_bos_token": "yes" }));
    let error = load(&file(), &cfg).unwrap_err().to_string();
    assert_eq!(
        error,
        "tokenizer_config.json: add_bos_token must be true or false"
    );
    cfg.tokenizer_config = Some(json!({ "bos_token": "<nope>" }));
    let error = load(&file(), &cfg).unwrap_err().to_string();
    assert_eq!(
        error,
        "tokenizer_config.json: bos_token names `<nope>`, which is not in the vocabulary"
    );
}

/// The file with a template that puts `ids` for `<|end|>` before a text, and behind it.
fn with_template(before: &Value, after: Option<&str>) -> Value {
    let mut file = file();
    let mut single = vec![
        json!({ "SpecialToken": { "id": "<|end|>", "type_id": 0 } }),
        json!({ "Sequence": { "id": "A", "type_id": 0 } }),
    ];
    single.extend(after.map(|name| json!({ "SpecialToken": { "id": name, "type_id": 0 } })));
    file["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": single,
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": {
            "<|end|>": { "id": "<|end|>", "ids": before, "tokens": vec!["t"; before.as_array().unwrap().len()] },
            "<tool>": { "id": "<tool>", "ids": [14], "tokens": ["<tool>"] },
        },
    });
    file
}

#[test]
fn the_ids_of_a_template_count_and_not_its_names() {
    let ids = |file: &Value| {
        let t = load(file, &no_files()).unwrap();
        t.encode("ab", EncodeSpecial::Markers, Bos::Model).unwrap()
    };
    assert_eq!(ids(&with_template(&json!([7]), None)), [7, 4]);
    assert_eq!(ids(&with_template(&json!([2, 7]), None)), [2, 7, 4]);
    let error = load(&with_template(&json!([99_999]), None), &no_files()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tokenizer.json: an id with which the post_processor begins a text is 99999, the vocabulary has 21 tokens"
    );
    let ends = with_template(&json!([13]), Some("<tool>"));
    let t = load(&ends, &no_files()).unwrap();
    assert_eq!(
        (t.special().add_eos, &t.special().eos[..]),
        (true, &[14][..])
    );
    let mut cfg = no_files();
    cfg.tokenizer_config = Some(json!({ "eos_token": "<|end|>" }));
    assert_eq!(
        load(&ends, &cfg).unwrap_err().to_string(),
        "tokenizer.json: single of its post_processor is a template with id 14 after the text, expected nothing there \
         but the ids that end generation (eos_token, eos_token_id)"
    );
}

#[test]
fn random_merges_are_refused() {
    let mut random = file();
    random["model"]["dropout"] = json!(0.5);
    assert_eq!(
        load(&random, &no_files()).unwrap_err().to_string(),
        "tokenizer.json: model.dropout is 0.5, which gives a text other ids each time, expected null or 0"
    );
    for harmless in [json!(0.0), Value::Null] {
        random["model"]["dropout"] = harmless;
        assert_eq!(plain(&load(&random, &no_files()).unwrap(), "ab"), [4]);
    }
}

#[test]
fn ids_that_end_or_fill_have_a_row() {
    let mut cfg = no_files();
    for (key, file) in [
        ("eos_token_id", "config.json"),
        ("pad_token_id", "config.json"),
        ("eos_token_id", "generation_config.json"),
    ] {
        let value = Some(json!({ key: [3, 21] }));
        (cfg.config, cfg.generation_config) = match file {
            "config.json" => (value, None),
            _ => (None, value),
        };
        assert_eq!(
            load(&self::file(), &cfg).unwrap_err().to_string(),
            format!("{file}: {key} is 21, the vocabulary has 21 tokens")
        );
    }
    // An embedding with more rows than there are texts may end with one of them.
    cfg.config = Some(json!({ "vocab_size": 22, "eos_token_id": [3, 21] }));
    assert_eq!(load(&file(), &cfg).unwrap().special().eos, [3, 21]);
}

#[test]
fn texts_that_share_an_id_are_both_named() {
    let mut shared = file();
    shared["model"]["vocab"]["zz"] = json!(5);
    shared["model"]["vocab"]["zy"] = json!(5);
    shared["model"]["vocab"]["yy"] = json!(6);
    for _ in 0..16 {
        let error = load(&shared, &no_files()).unwrap_err().to_string();
        assert_eq!(
            error,
            "tokenizer.json: `zy` and `zz` both have id 5, each token needs one of its own"
        );
    }
}

#[test]
fn an_unreadable_part_is_named() {
    for (part, value, expected) in [
        (
            "model",
            json!({ "type": "Bogus" }),
            "model of type \"Bogus\" cannot be read, expected one of BPE, ",
        ),
        (
            "model",
            json!({ "vocab": 3 }),
            "model of type null cannot be read, expected one of BPE, ",
        ),
        (
            "normalizer",
            json!({ "type": "Bogus" }),
            "normalizer of type \"Bogus\" cannot be read",
        ),
        (
            "pre_tokenizer",
            json!({ "type": "Split" }),
            "pre_tokenizer of type \"Split\" cannot be read",
        ),
        (
            "post_processor",
            json!({ "type": "Bogus" }),
            "post_processor of type \"Bogus\" cannot be read",
        ),
        (
            "decoder",
            json!({ "type": "Bogus" }),
            "decoder of type \"Bogus\" cannot be read",
        ),
    ] {
        let mut bad = file();
        bad[part] = value;
        let error = load(&bad, &no_files()).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("tokenizer.json: {expected}")),
            "{error}"
        );
    }
}

#[test]
fn a_truncation_in_the_file_does_not_cut_prompts() {
    let mut cut = file();
    cut["truncation"] = json!({
        "max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"
    });
    let t = load(&cut, &no_files()).unwrap();
    assert_eq!(plain(&t, "ab ab ab"), [4, 5, 5]);
}

#[test]
fn a_file_that_would_lose_text_is_refused() {
    let mut no_words = file();
    no_words["pre_tokenizer"] = Value::Null;
    let error = load(&no_words, &no_files()).unwrap_err();
    assert!(matches!(
        error,
        TokenizerError::NoSpaceRule { symbol: '\u{120}' }
    ));
    let mut no_decoder = file();
    no_decoder["decoder"] = Value::Null;
    let error = load(&no_decoder, &no_files()).unwrap_err().to_string();
    assert!(error.contains("decoder `null` is not supported"), "{error}");
    let mut moved = file();
    moved["added_tokens"][0]["id"] = json!(14);
    let error = load(&moved, &no_files()).unwrap_err().to_string();
    assert_eq!(
        error,
        "tokenizer.json: added token `<|end|>` declares id 14, but gets 13"
    );
    let error = Tokenizer::from_json(b"{", &no_files()).unwrap_err();
    assert!(matches!(error, TokenizerError::Json(_)));
}

#[test]
fn a_class_that_splits_differently_is_reported() {
    // The probe text needs every byte to have a token.
    let mut v = vocab();
    let known: std::collections::HashSet<String> = v.tokens.iter().map(str::to_owned).collect();
    let alphabet = (0x21..0x180).filter_map(char::from_u32).map(String::from);
    for text in alphabet.filter(|c| !known.contains(c)) {
        v.tokens.push(&text);
    }
    v.token_types = Some(vec![1; v.tokens.len()]);
    v.pre = Some("qwen2".into());
    let json = Tokenizer::from_gguf(v).unwrap().to_json().unwrap();
    let load = |class: &str| {
        let mut cfg = no_files();
        cfg.tokenizer_config = Some(json!({ "tokenizer_class": class }));
        Tokenizer::from_json(json.as_bytes(), &cfg).unwrap()
    };
    assert_eq!(load("Qwen2Tokenizer").warnings(), []);
    assert_eq!(load("PreTrainedTokenizerFast").warnings(), []);
    // `12` of `12345` merges under one rule only.
    match load("GPT2Tokenizer").warnings() {
        [
            TokenizerWarning::ClassMismatch {
                n_tokens_file,
                n_tokens_class,
                ..
            },
        ] => assert_eq!(*n_tokens_file, n_tokens_class + 1),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_template_comes_from_the_file_or_the_configuration() {
    let mut cfg = no_files();
    assert_eq!(load(&file(), &cfg).unwrap().chat_template(), None);
    cfg.tokenizer_config = Some(json!({ "chat_template": [
        { "name": "tool_use", "template": "T" }, { "name": "default", "template": "D" }
    ] }));
    assert_eq!(load(&file(), &cfg).unwrap().chat_template(), Some("D"));
    cfg.chat_template = Some("J".into());
    assert_eq!(load(&file(), &cfg).unwrap().chat_template(), Some("J"));
    cfg.chat_template = Some("\n".into());
    assert_eq!(load(&file(), &cfg).unwrap().chat_template(), None);
    cfg.chat_template = None;
    cfg.tokenizer_config = Some(json!({ "chat_template": "" }));
    assert_eq!(load(&file(), &cfg).unwrap().chat_template(), None);
    cfg.tokenizer_config = Some(json!({ "chat_template": 3 }));
    assert!(matches!(
        load(&file(), &cfg).unwrap_err(),
        TokenizerError::ConfigValue { .. }
    ));
}
