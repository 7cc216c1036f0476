//! The LQL language: text to AST with spans and back
