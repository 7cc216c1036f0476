//! What a MODEL argument names: a local path, or a model of the Hugging Face Hub that becomes one.
//!
//! A path that exists is always the path; `org/repo` is looked for on the hub only if there is none.

use std::path::{Path, PathBuf};

use larql_db::DbError;
use larql_hub::{
    DEFAULT_ENDPOINT, Hub, HubConfig, HubError, ModelRef, Progress, ProgressFn, RETRY_PAUSE, Token,
};

use crate::context::Context;
use crate::error::CliError;
use crate::printer::flow;
use crate::table::size;

/// A model to look at.
#[derive(Debug)]
pub(crate) struct Headers {
    /// What to open.
    pub(crate) path: PathBuf,
    /// Where it came from, if it is on the hub.
    pub(crate) model: Option<ModelRef>,
}

/// The local path of a model, which is fetched first if it is one of the hub.
///
/// # Errors
/// If there is neither such a path nor such a model, or it cannot be fetched.
pub(crate) fn resolve(context: &Context, model: &Path) -> Result<PathBuf, CliError> {
    match fetch(context, model)? {
        Some(path) => Ok(path),
        None => local(model),
    }
}

/// Fetches a model of the hub; nothing if the text names a local path.
///
/// # Errors
/// If it cannot be fetched.
pub(crate) fn fetch(context: &Context, model: &Path) -> Result<Option<PathBuf>, CliError> {
    let Some(reference) = reference(model)? else {
        return Ok(None);
    };
    let path = with_hub(context, model, &reference, |hub, progress| {
        hub.fetch_model(&reference, progress)
    })?;
    Ok(Some(path))
}

/// A model to look at; of one of the hub, the headers alone are fetched into `folder`.
///
/// # Errors
/// As [`resolve`].
pub(crate) fn headers(context: &Context, model: &Path, folder: &Path) -> Result<Headers, CliError> {
    let Some(reference) = reference(model)? else {
        return Ok(Headers {
            path: local(model)?,
            model: None,
        });
    };
    let path = with_hub(context, model, &reference, |hub, progress| {
        hub.fetch_headers(&reference, folder, progress)
    })?;
    Ok(Headers {
        path,
        model: Some(reference),
    })
}

/// The model of the hub that a text names.
fn reference(model: &Path) -> Result<Option<ModelRef>, CliError> {
    let Some(text) = model.to_str() else {
        return Ok(None);
    };
    if ModelRef::has_scheme(text) {
        return Ok(Some(ModelRef::parse(text)?));
    }
    if model.exists() {
        return Ok(None);
    }
    Ok(ModelRef::from_bare(text))
}

fn local(model: &Path) -> Result<PathBuf, CliError> {
    if model.exists() {
        return Ok(model.to_owned());
    }
    let path = model.to_owned();
    let error = CliError::from(DbError::NotFound { path });
    let hint = error.hint.is_none().then(|| {
        "MODEL is a local path, or org/repo or hf://org/repo on the Hugging Face Hub".to_owned()
    });
    Err(error.with_hint(hint))
}

/// Does something with the hub, under a bar and Ctrl-C.
fn with_hub(
    context: &Context,
    given: &Path,
    reference: &ModelRef,
    act: impl FnOnce(&Hub, &mut ProgressFn<'_>) -> Result<PathBuf, HubError>,
) -> Result<PathBuf, CliError> {
    let hub = Hub::new(config(context)?)?;
    let work = context.interrupts.work();
    let flag = context.interrupts.flag();
    let bar = context.printer.bar();
    let result = act(&hub, &mut |Progress { file, done, total }| {
        if total > 0 {
            bar.show(&format!("{reference}, {}", size(total)), done, total);
        } else {
            bar.show(&format!("{reference}, {file}"), 0, 0);
        }
        flow(flag.is_raised())
    });
    bar.clear();
    drop(work);
    result.map_err(|error| {
        let shown = CliError::from(error);
        let is_address = given.to_str().is_some_and(ModelRef::has_scheme);
        if is_address || shown.is_interrupted() {
            return shown;
        }
        // The user may have meant a path that is not there.
        let local = format!("there is no local path `{}` either", given.display());
        let hint = match &shown.hint {
            Some(hint) => format!("{local}; {hint}"),
            None => local,
        };
        shown.with_hint(Some(hint))
    })
}

fn config(context: &Context) -> Result<HubConfig, CliError> {
    let env = &context.env.hub;
    let text = |value: &std::ffi::OsString| value.to_string_lossy().into_owned();
    let cache_dir = env.cache_dir.clone().ok_or_else(|| {
        CliError::request(
            "no_cache_folder",
            "no folder is known for models of the hub",
        )
        .with_hint(Some("set HF_HOME to a folder".to_owned()))
    })?;
    let token = match (&env.token, &env.token_file) {
        (Some(token), _) => Some(token.clone()),
        (None, Some(path)) => Token::from_file(path)
            .map_err(|source| CliError::input(&path.display().to_string(), &source))?,
        (None, None) => None,
    };
    Ok(HubConfig {
        cache_dir,
        endpoint: env
            .endpoint
            .as_ref()
            .map_or_else(|| DEFAULT_ENDPOINT.to_owned(), text),
        token,
        https_proxy: env.https_proxy.as_ref().map(text),
        offline: env.offline,
        retry_pause: RETRY_PAUSE,
    })
}
