//! What templates expect of Python beyond the methods that come with the template engine.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// No text is padded further; a template may ask for any width.
const MAX_WIDTH: usize = 1 << 12;

/// Calls a method that neither the engine nor its own Python layer has.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match value.kind() {
        ValueKind::String => value
            .as_str()
            .and_then(|text| string_method(text, name, args)),
        ValueKind::Map if name == "copy" && args.is_empty() => Some(Ok(value.clone())),
        ValueKind::Seq | ValueKind::Iterable if name == "index" => Some(index_of(value, args)),
        _ => None,
    };
    match own {
        Some(result) => result,
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn bad_arguments(name: &str) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("{name}: arguments of another kind than Python's"),
    )
}

fn list(parts: &[&str]) -> Value {
    parts.iter().map(|part| Value::from(*part)).collect()
}

fn index_of(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let [wanted] = args else {
        return Err(bad_arguments("index"));
    };
    let at = list.try_iter()?.position(|item| item == *wanted);
    at.map(Value::from)
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "index: not in the list"))
}

/// `None` if we have no such method.
fn string_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let first = args.first().and_then(Value::as_str);
    let only = if args.len() == 1 { first } else { None };
    let with_only = |f: &dyn Fn(&str) -> Result<Value, Error>| {
        only.ok_or_else(|| bad_arguments(name)).and_then(f)
    };
    Some(match name {
        "removeprefix" => with_only(&|prefix| Ok(text.strip_prefix(prefix).unwrap_or(text).into())),
        "removesuffix" => with_only(&|suffix| Ok(text.strip_suffix(suffix).unwrap_or(text).into())),
        "index" => with_only(&|part| {
            let at = text.find(part).ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, "index: substring not found")
            })?;
            Ok(text[..at].chars().count().into())
        }),
        "partition" => with_only(&|by| {
            let parts = text.split_once(by);
            Ok(parts.map_or(list(&[text, "", ""]), |(l, r)| list(&[l, by, r])))
        }),
        "rpartition" => with_only(&|by| {
            let parts = text.rsplit_once(by);
            Ok(parts.map_or(list(&["", "", text]), |(l, r)| list(&[l, by, r])))
        }),
        "rsplit" => rsplit(text, args),
        "swapcase" if args.is_empty() => Ok(text.chars().map(swapped).collect::<String>().into()),
        "zfill" | "center" | "ljust" | "rjust" => padded(text, name, args),
        _ => return None,
    })
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (by, limit) = match args {
        [by] => (by.as_str(), None),
        [by, limit] => (by.as_str(), limit.as_i64()),
        _ => (None, None),
    };
    let by = by
        .filter(|by| !by.is_empty())
        .ok_or_else(|| bad_arguments("rsplit"))?;
    // A negative limit is none.
    let limit = limit
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = text.rsplitn(limit.saturating_add(1), by).collect();
    parts.reverse();
    Ok(list(&parts))
}

fn swapped(c: char) -> String {
    if c.is_uppercase() {
        c.to_lowercase().collect()
    } else {
        c.to_uppercase().collect()
    }
}

fn padded(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let width = args
        .first()
        .and_then(Value::as_usize)
        .ok_or_else(|| bad_arguments(name))?;
    if width > MAX_WIDTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("{name}: the width is {width}, the limit is {MAX_WIDTH}"),
        ));
    }
    let fill = args.get(1).and_then(Value::as_str).unwrap_or(" ");
    let missing = width.saturating_sub(text.chars().count());
    let pad = |n: usize, fill: &str| fill.repeat(n);
    Ok(match name {
        "zfill" => {
            let digits = text.trim_start_matches(['+', '-']);
            let sign = &text[..text.len() - digits.len()];
            format!("{sign}{}{digits}", pad(missing, "0"))
        }
        "ljust" => format!("{text}{}", pad(missing, fill)),
        "rjust" => format!("{}{text}", pad(missing, fill)),
        // The odd space goes left where the width is odd.
        _ => {
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", pad(left, fill), pad(missing - left, fill))
        }
    }
    .into())
}

/// What Python can iterate over; nothing is not, an undefined name is.
pub(super) fn is_iterable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => false,
        ValueKind::Undefined
        | ValueKind::String
        | ValueKind::Bytes
        | ValueKind::Seq
        | ValueKind::Map => true,
        _ => value.try_iter().is_ok(),
    }
}

/// What has a length and items; that is more than lists.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined
            | ValueKind::String
            | ValueKind::Bytes
            | ValueKind::Seq
            | ValueKind::Map
    )
}
