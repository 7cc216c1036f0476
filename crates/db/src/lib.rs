//! Open, extract, plan, execute: statements in, typed rows out
