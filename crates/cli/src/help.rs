//! Help on LQL statements, for `\help` of the REPL.
//!
//! A table of syntax, meaning and example per statement; the grammar itself is in `larql-lql`.

/// Help on one statement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StatementHelp {
    /// The words that begin it.
    pub(crate) name: &'static str,
    /// Its clauses.
    pub(crate) syntax: &'static str,
    /// What it answers.
    pub(crate) meaning: &'static str,
    /// One that can be typed.
    pub(crate) example: &'static str,
}

/// Every statement, in the order of a first visit.
pub(crate) const STATEMENTS: &[StatementHelp] = &[
    StatementHelp {
        name: "USE",
        syntax: "USE \"path\"",
        meaning: "ask this model from now on: a vindex, a .gguf file, a checkpoint folder or hf://org/repo",
        example: "USE \"atlas.vindex\";",
    },
    StatementHelp {
        name: "STATS",
        syntax: "STATS",
        meaning: "what the model in use consists of",
        example: "STATS;",
    },
    StatementHelp {
        name: "SHOW LAYERS",
        syntax: "SHOW LAYERS [n | [RANGE] a-b]",
        meaning: "the layers and what each consists of",
        example: "SHOW LAYERS 0-3;",
    },
    StatementHelp {
        name: "SHOW FEATURES",
        syntax: "SHOW FEATURES layer [WHERE condition] [LIMIT n]",
        meaning: "the features of a layer and the tokens they write",
        example: "SHOW FEATURES 2 LIMIT 10;",
    },
    StatementHelp {
        name: "SHOW RELATIONS",
        syntax: "SHOW RELATIONS [WITH EXAMPLES]",
        meaning: "the relations that can be asked",
        example: "SHOW RELATIONS WITH EXAMPLES;",
    },
    StatementHelp {
        name: "SHOW RELATION",
        syntax: "SHOW RELATION name",
        meaning: "the templates and answers of one relation",
        example: "SHOW RELATION capital;",
    },
    StatementHelp {
        name: "SHOW MODELS",
        syntax: "SHOW MODELS",
        meaning: "the models in the models folder",
        example: "SHOW MODELS;",
    },
    StatementHelp {
        name: "DESCRIBE",
        syntax: "DESCRIBE \"entity\" [RELATION name | RELATIONS (name, ...)] [AT LAYER n | LAYERS a-b | LAYERS ALL] [TOP n] [BRIEF | VERBOSE]",
        meaning: "what the model answers about an entity, with the evidence",
        example: "DESCRIBE \"France\" RELATION capital VERBOSE;",
    },
    StatementHelp {
        name: "INFER",
        syntax: "INFER \"prompt\" [TOP n] [GENERATE n]",
        meaning: "the next tokens of a prompt, by running the model",
        example: "INFER \"The capital of France is\" TOP 5;",
    },
    StatementHelp {
        name: "WALK",
        syntax: "WALK \"prompt\" [TOP n] [AT LAYER n | LAYERS a-b | LAYERS ALL] [POSITION n | LAST]",
        meaning: "the features that a prompt makes fire",
        example: "WALK \"The capital of France is\" TOP 10;",
    },
    StatementHelp {
        name: "SELECT",
        syntax: "SELECT * | column, ... FROM EDGES | FEATURES [NEAREST TO \"text\" [AT LAYER n]] [WHERE condition] [ORDER BY column [ASC | DESC], ...] [LIMIT n]",
        meaning: "rows of a table",
        example: "SELECT * FROM FEATURES NEAREST TO \"Paris\" LIMIT 10;",
    },
    StatementHelp {
        name: "EXPLAIN",
        syntax: "EXPLAIN statement",
        meaning: "the plan of a statement instead of its result",
        example: "EXPLAIN DESCRIBE \"France\";",
    },
    StatementHelp {
        name: "CREATE RELATION",
        syntax: "CREATE RELATION name TEMPLATES (\"...\", ...) [ANSWERS (\"...\", ...)] [TYPE \"...\"]",
        meaning: "a relation of your own; each template has {e} for the entity and ends where the answer follows",
        example: "CREATE RELATION anthem TEMPLATES (\"The anthem of {e} is\");",
    },
    StatementHelp {
        name: "DROP RELATION",
        syntax: "DROP RELATION name",
        meaning: "forget a relation of your own",
        example: "DROP RELATION anthem;",
    },
];

/// What `\help` says.
pub(crate) fn overview() -> String {
    let mut text = String::from("Statements end with `;` and may span lines.\n\n");
    for help in STATEMENTS {
        text.push_str(&format!("  {:<16} {}\n", help.name, help.meaning));
    }
    text.push_str(
        "\n  \\help STATEMENT  syntax and example\n  \\timing          show how long statements take, or stop it\n  \
         \\format FORM     table, json or csv\n  \\q               leave",
    );
    text
}

/// What `\help STATEMENT` says: every statement that begins with these words.
pub(crate) fn on(words: &str) -> Option<String> {
    let words = words.trim().trim_end_matches(';').to_ascii_uppercase();
    let matching = STATEMENTS
        .iter()
        .filter(|help| help.name.starts_with(&words));
    let parts: Vec<String> = matching
        .map(|help| {
            format!(
                "{}\n  {}\n  example: {}",
                help.syntax, help.meaning, help.example
            )
        })
        .collect();
    (!words.is_empty() && !parts.is_empty()).then(|| parts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_parses_to_the_statement_it_explains() {
        for help in STATEMENTS {
            let parsed = larql_lql::parse(help.example).unwrap();
            assert_eq!(parsed.len(), 1, "{}", help.name);
            assert_eq!(parsed[0].name(), help.name);
        }
    }

    #[test]
    fn help_is_found_by_its_first_words() {
        assert!(on("walk;").unwrap().starts_with("WALK \"prompt\""));
        assert_eq!(on("show").unwrap().matches("example:").count(), 5);
        assert_eq!(on("nothing"), None);
        assert_eq!(on(" "), None);
    }
}
