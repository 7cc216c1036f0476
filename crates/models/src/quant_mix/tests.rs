//! Against the formats in files that llama.cpp's quantizer wrote.
//!
//! `reference.txt` lists several models.  A line `model LABEL ARCHITECTURE LAYERS EXPERTS HEADS
//! KV_HEADS` opens one; a line `NAME ROWS COLS FORMAT FORMATS` is a tensor with the letter of its
//! format in the source and one letter for each of [`Mix::ALL`].

use super::*;

struct Model<'a> {
    label: &'a str,
    facts: MixFacts<'a>,
    tensors: Vec<MixTensor<'a>>,
    stored: Vec<Format>,
    expected: Vec<&'a [u8]>,
}

fn format_of(letter: u8) -> Format {
    match letter {
        b'S' => Format::F32,
        b'H' => Format::F16,
        b'B' => Format::Bf16,
        b'8' => Format::Q8_0,
        b'w' => Format::Q4_0,
        b'x' => Format::Q4_1,
        b'y' => Format::Q5_0,
        b'z' => Format::Q5_1,
        b'2' => Format::Q2K,
        b'3' => Format::Q3K,
        b'4' => Format::Q4K,
        b'5' => Format::Q5K,
        b'6' => Format::Q6K,
        other => panic!("letter {other}"),
    }
}

fn reference() -> Vec<Model<'static>> {
    let mut models: Vec<Model<'_>> = Vec::new();
    for line in include_str!("reference.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "model" {
            let number = |i: usize| words[i].parse().unwrap();
            models.push(Model {
                label: words[1],
                facts: MixFacts {
                    architecture: words[2],
                    n_layers: number(3),
                    n_experts: number(4),
                    n_heads: number(5),
                    n_kv_heads: number(6),
                },
                tensors: Vec::new(),
                stored: Vec::new(),
                expected: Vec::new(),
            });
        } else {
            let model = models.last_mut().unwrap();
            model.tensors.push(MixTensor {
                name: words[0],
                rows: words[1].parse().unwrap(),
                cols: words[2].parse().unwrap(),
            });
            model.stored.push(format_of(words[3].as_bytes()[0]));
            model.expected.push(words[4].as_bytes());
        }
    }
    models
}

#[test]
fn every_mix_agrees_with_files_of_the_reference() {
    let mut n_compared = 0;
    for model in reference() {
        for (column, &mix) in Mix::ALL.iter().enumerate() {
            let choices = plan(mix, &model.tensors, &model.facts).unwrap();
            for (i, choice) in choices.into_iter().enumerate() {
                let got = match choice {
                    MixChoice::Keep => model.stored[i],
                    MixChoice::Encode { format, .. } => format,
                };
                let expected = format_of(model.expected[i][column]);
                let name = model.tensors[i].name;
                assert_eq!(got, expected, "{} {mix} {name}", model.label);
                n_compared += 1;
            }
        }
    }
    assert!(n_compared > 10_000, "{n_compared}");
}

#[test]
fn a_fallback_is_reported() {
    let facts = MixFacts {
        architecture: "llama",
        n_layers: 1,
        n_experts: 0,
        n_heads: 4,
        n_kv_heads: 4,
    };
    let cases = [
        ("token_embd.weight", 640, Format::Q8_0, Some(Format::Q6K)),
        ("blk.0.attn_q.weight", 640, Format::Q5_0, Some(Format::Q4K)),
        ("blk.0.attn_k.weight", 44, Format::F16, Some(Format::Q4K)),
        ("blk.0.ffn_up.weight", 512, Format::Q4K, None),
    ];
    let tensors = cases.map(|(name, cols, ..)| MixTensor {
        name,
        rows: 3,
        cols,
    });
    let expected = cases.map(|(_, _, format, fallback_from)| MixChoice::Encode {
        format,
        fallback_from,
    });
    assert_eq!(plan(Mix::Q4KM, &tensors, &facts).unwrap(), expected);
}

#[test]
fn what_has_no_rule_is_refused() {
    let mut facts = MixFacts {
        architecture: "llama",
        n_layers: 2,
        n_experts: 4,
        n_heads: 4,
        n_kv_heads: 4,
    };
    let tensors = ["blk.2.ffn_down_exps.weight"].map(|name| MixTensor {
        name,
        rows: 8,
        cols: 256,
    });
    let error = plan(Mix::Q4KM, &tensors, &facts).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor blk.2.ffn_down_exps.weight names no layer below 2, which the mix of a model with \
         experts needs"
    );
    facts.architecture = "glm5-next";
    assert!(matches!(
        plan(Mix::Q8_0, &tensors, &facts),
        Err(MixError::UnknownRules { .. })
    ));
}

#[test]
fn names_and_aliases() {
    for &mix in Mix::ALL {
        assert_eq!(Mix::parse(&mix.name().to_uppercase()), Some(mix));
    }
    assert_eq!(Mix::parse("q4_k"), Some(Mix::Q4KM));
    assert_eq!(Mix::parse("Q5_K"), Some(Mix::Q5KM));
    assert_eq!(Mix::parse("q4_k_l"), None);
    let file_types: std::collections::BTreeSet<u32> =
        Mix::ALL.iter().map(|mix| mix.file_type()).collect();
    assert_eq!(file_types.len(), Mix::ALL.len());
}
