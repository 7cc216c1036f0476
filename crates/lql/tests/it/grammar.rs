//! `GRAMMAR.md` says what the parser does: the same keywords, the same lists and limits, and
//! every sentence that its rules derive is accepted.

use std::collections::{BTreeMap, BTreeSet};

use larql_lql::{
    KEYWORDS, MAX_DEPTH, MAX_INPUT_BYTES, MAX_LIST_ITEMS, RESERVED, UNAVAILABLE_STATEMENTS, parse,
};

const GRAMMAR: &str = include_str!("../../GRAMMAR.md");

fn ebnf() -> &'static str {
    let (_, rest) = GRAMMAR.split_once("```ebnf\n").unwrap();
    rest.split_once("```").unwrap().0
}

/// Terminals in quotes, names, and the signs of the notation.
fn ebnf_tokens() -> Vec<&'static str> {
    let text = ebnf();
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let n_bytes = match first {
            '"' => rest[1..].find('"').unwrap() + 2,
            'a'..='z' => rest.find(|ch: char| !ch.is_ascii_alphanumeric()).unwrap(),
            _ => 1,
        };
        tokens.push(&rest[..n_bytes]);
        rest = rest[n_bytes..].trim_start();
    }
    tokens
}

#[test]
fn keywords_are_exactly_the_terminals() {
    let terminals: BTreeSet<&str> = ebnf_tokens()
        .into_iter()
        .filter_map(|token| token.strip_prefix('"')?.strip_suffix('"'))
        .filter(|terminal| terminal.starts_with(|ch: char| ch.is_ascii_alphabetic()))
        .collect();
    assert_eq!(terminals, KEYWORDS.iter().copied().collect());
}

#[test]
fn listed_words_and_limits_are_those_of_the_code() {
    for list in [RESERVED, UNAVAILABLE_STATEMENTS] {
        assert!(
            GRAMMAR.contains(&format!("`{}`\n", list.join(" "))),
            "{list:?}"
        );
    }
    for limit in [MAX_INPUT_BYTES, MAX_DEPTH, MAX_LIST_ITEMS] {
        assert!(GRAMMAR.contains(&format!("| {limit} |\n")), "{limit}");
    }
}

/// A right-hand side of the grammar.
enum Rule {
    Terminal(&'static str),
    Name(&'static str),
    Sequence(Vec<Rule>),
    Choice(Vec<Rule>),
    AnyOrder(Vec<Rule>),
    Optional(Box<Rule>),
    Repeated(Box<Rule>),
}

/// Reads the notation; its signs bind in the order `|`, `&`, juxtaposition.
struct Reader {
    tokens: Vec<&'static str>,
    pos: usize,
}

impl Reader {
    fn rules() -> BTreeMap<&'static str, Rule> {
        let mut reader = Reader {
            tokens: ebnf_tokens(),
            pos: 0,
        };
        let mut rules = BTreeMap::new();
        while reader.pos < reader.tokens.len() {
            let name = reader.next();
            assert_eq!(reader.next(), "=", "{name}");
            let rule = reader.choice();
            assert_eq!(reader.next(), ";", "{name}");
            assert!(rules.insert(name, rule).is_none(), "{name}");
        }
        rules
    }

    fn next(&mut self) -> &'static str {
        self.pos += 1;
        self.tokens[self.pos - 1]
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.tokens.get(self.pos) == Some(&token);
        self.pos += usize::from(found);
        found
    }

    fn choice(&mut self) -> Rule {
        let mut rules = vec![self.any_order()];
        while self.eat("|") {
            rules.push(self.any_order());
        }
        if rules.len() == 1 {
            rules.remove(0)
        } else {
            Rule::Choice(rules)
        }
    }

    fn any_order(&mut self) -> Rule {
        let mut rules = vec![self.sequence()];
        while self.eat("&") {
            rules.push(self.sequence());
        }
        if rules.len() == 1 {
            rules.remove(0)
        } else {
            Rule::AnyOrder(rules)
        }
    }

    fn sequence(&mut self) -> Rule {
        let mut rules = Vec::new();
        while !["|", "&", ")", "]", "}", ";"].contains(&self.tokens[self.pos]) {
            let token = self.next();
            let (rule, close) = match token {
                "(" => (self.choice(), ")"),
                "[" => (Rule::Optional(Box::new(self.choice())), "]"),
                "{" => (Rule::Repeated(Box::new(self.choice())), "}"),
                _ if token.starts_with('"') => (Rule::Terminal(token.trim_matches('"')), ""),
                _ => (Rule::Name(token), ""),
            };
            assert!(close.is_empty() || self.next() == close, "{close}");
            rules.push(rule);
        }
        Rule::Sequence(rules)
    }
}

/// Derives sentences, choosing by a multiplicative generator.
struct Writer<'a> {
    rules: &'a BTreeMap<&'static str, Rule>,
    state: u64,
    out: Vec<String>,
    used: BTreeSet<&'static str>,
}

impl Writer<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % n
    }

    fn write(&mut self, rule: &Rule, depth: usize) {
        match rule {
            Rule::Terminal(text) => {
                self.used.insert(text);
                let lower = self.below(2) == 0;
                self.out.push(if lower {
                    text.to_ascii_lowercase()
                } else {
                    (*text).to_owned()
                });
            }
            Rule::Name(name) => self.write_name(name, depth),
            Rule::Sequence(rules) => rules.iter().for_each(|rule| self.write(rule, depth + 1)),
            Rule::Choice(rules) => {
                // Deep down only the last alternative, which is where no rule refers to itself.
                let pick = if depth > 40 {
                    rules.len() - 1
                } else {
                    self.below(rules.len())
                };
                self.write(&rules[pick], depth + 1);
            }
            Rule::AnyOrder(rules) => {
                let mut left: Vec<&Rule> = rules.iter().collect();
                while !left.is_empty() {
                    let pick = self.below(left.len());
                    self.write(left.remove(pick), depth + 1);
                }
            }
            Rule::Optional(rule) => {
                if self.below(2) == 0 {
                    self.write(rule, depth + 1);
                }
            }
            Rule::Repeated(rule) => {
                while self.below(3) == 0 {
                    self.write(rule, depth + 1);
                }
            }
        }
    }

    fn write_name(&mut self, name: &'static str, depth: usize) {
        let samples: &[&str] = match name {
            "string" => &["\"France\"", "'it''s'", "'{e} is'", "\"\\\\\\\"\""],
            "column" => &["layer", "Score", "top", "_x9"],
            "word" => &["capital", "language_of", "_"],
            "u32" => &["0", "7", "4294967295"],
            "integer" => &["0", "12", "9223372036854775807"],
            "float" => &["0.5", "1e3", "2.50E-7"],
            // The rule alone would also give ranges that end before they start.
            "range" => &["0-3", "5 - 5"],
            _ => {
                let rules = self.rules;
                let rule = rules
                    .get(name)
                    .unwrap_or_else(|| panic!("rule {name} is not defined"));
                return self.write(rule, depth + 1);
            }
        };
        // Two quoted strings in a row would not be one string.
        let pick = self.below(samples.len());
        self.out.push(samples[pick].replace("''", "\\'"));
    }
}

#[test]
fn every_derived_sentence_is_accepted() {
    let rules = Reader::rules();
    let mut writer = Writer {
        rules: &rules,
        state: 1,
        out: Vec::new(),
        used: BTreeSet::new(),
    };
    for _ in 0..5000 {
        writer.out.clear();
        writer.write(&rules["input"], 0);
        let sentence = writer.out.join(" ");
        let statements =
            parse(&sentence).unwrap_or_else(|error| panic!("{}", error.render(&sentence)));
        let printed: Vec<String> = statements.iter().map(ToString::to_string).collect();
        assert_eq!(parse(&printed.join(";")).unwrap(), statements, "{sentence}");
    }
    let unused: Vec<_> = KEYWORDS
        .iter()
        .filter(|word| !writer.used.contains(*word))
        .collect();
    // `RANGE` and its like must all have been derived, or the test shows less than it says.
    assert_eq!(unused, [&""; 0]);
}
