//! One module per verb, one public function each.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod demo;
pub(crate) mod export;
pub(crate) mod extract;
pub(crate) mod logits;
pub(crate) mod lql;
pub(crate) mod markdown_help;
pub(crate) mod pack;
pub(crate) mod parity;
pub(crate) mod repl;
pub(crate) mod run;
pub(crate) mod score;
pub(crate) mod show;
pub(crate) mod tokenize;
pub(crate) mod verify;
