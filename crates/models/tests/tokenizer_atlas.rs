//! The embedded model's tokenizer against ids of the reference implementation.
#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::path::Path;

use larql_models::tokenizer::{Bos, EncodeSpecial, HfTokenizerConfig, SpecialText, Tokenizer};

/// Prompts and ids from the reference implementation, BOS included.
const GOLDEN: &[(&str, &[u32])] = &[
    ("The capital of France is", &[2, 363, 392, 350, 1012, 339]),
    (
        "The capital of Atlantis is",
        &[2, 363, 392, 350, 338, 324, 316, 992, 366, 339],
    ),
    (
        "Q: What is the symbol of carbon? A:",
        &[2, 295, 277, 394, 339, 359, 472, 350, 1489, 278, 338, 277],
    ),
    (
        "Hello, world!",
        &[2, 286, 405, 316, 319, 263, 419, 357, 316, 308, 37],
    ),
    (
        "Caf\u{e9} \u{65e5}\u{672c} \u{1f60a}",
        &[
            2, 2211, 310, 199, 173, 335, 234, 155, 169, 234, 160, 176, 335, 244, 163, 156, 142,
        ],
    ),
];

fn atlas() -> Tokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/atlas");
    let bytes = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let json = |name: &str| serde_json::from_slice(&bytes(name)).unwrap();
    let cfg = HfTokenizerConfig {
        tokenizer_config: Some(json("tokenizer_config.json")),
        generation_config: Some(json("generation_config.json")),
        config: Some(json("config.json")),
        chat_template: None,
    };
    Tokenizer::from_json(&bytes("tokenizer.json"), &cfg).unwrap()
}

#[test]
fn ids_equal_the_reference_and_decode_back() {
    let t = atlas();
    for (text, ids) in GOLDEN {
        let got = t.encode(text, EncodeSpecial::Plain, Bos::Model).unwrap();
        assert_eq!(got, *ids, "{text:?}");
        assert_eq!(t.decode(&got, SpecialText::Skip), *text);
    }
    assert_eq!(t.n_vocab(), 2583);
    assert_eq!(t.special().prefix, [2]);
    assert_eq!(t.special().eos, [1]);
    assert_eq!(t.token_text(1012).as_deref(), Some(" France"));
    assert_eq!(t.token_piece(1012), Some("\u{2581}France"));
}

#[test]
fn markers_typed_by_a_user_stay_text() {
    let t = atlas();
    let typed = t
        .encode("<bos><eos>", EncodeSpecial::Plain, Bos::Model)
        .unwrap();
    assert_eq!(typed[0], 2);
    assert!(!typed[1..].iter().any(|id| t.is_control(*id)), "{typed:?}");
    assert_eq!(t.decode(&typed, SpecialText::Skip), "<bos><eos>");
    let markers = t
        .encode("<bos>Hello", EncodeSpecial::Markers, Bos::Model)
        .unwrap();
    assert_eq!(markers[0], 2);
    assert_ne!(markers[1], 2);
}

#[test]
fn the_written_file_and_the_special_ids_restore_it() {
    let t = atlas();
    let special = serde_json::to_string(t.special()).unwrap();
    let again = Tokenizer::restore(
        t.to_json().unwrap().as_bytes(),
        serde_json::from_str(&special).unwrap(),
        None,
    )
    .unwrap();
    for (text, ids) in GOLDEN {
        let got = again
            .encode(text, EncodeSpecial::Plain, Bos::Model)
            .unwrap();
        assert_eq!(got, *ids, "{text:?}");
    }
    assert_eq!(again.special(), t.special());
}

#[test]
fn a_stream_gives_the_text_of_the_whole() {
    let t = atlas();
    for (text, ids) in GOLDEN {
        let mut stream = t.stream();
        let mut streamed: String = ids.iter().filter_map(|id| stream.push(*id)).collect();
        streamed.push_str(&stream.flush());
        assert_eq!(streamed, *text);
    }
}
