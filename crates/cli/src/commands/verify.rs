//! `larql verify`.

use crate::Outcome;
use crate::args::VerifyArgs;
use crate::context::Context;
use crate::error::CliError;

/// TEMP
pub(crate) fn verify(_context: &Context, _args: &VerifyArgs) -> Result<Outcome, CliError> {
    Err(CliError::failure("todo", "not yet"))
}
