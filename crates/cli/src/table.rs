//! Rows as text: tables for reading, CSV for programs.
//!
//! Numbers are shortened in tables only. Control characters become escapes there, so that a token cannot move the cursor
//! or break a line; in CSV and JSON every value is whole.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentLineStyle, LineStyle, Table, TableStyle};
use larql_db::{Cell, Rows};

/// What an absent value looks like in a table.
const ABSENT: &str = "-";
/// Columns apart, header underlined.
const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction(' '))
    .header_separator(LineStyle::none().fill('-').junction(' '))
    .content_lines(ContentLineStyle::none().junction(' '));

/// The rows as a table, without a line end after the last line.
pub(crate) fn render(rows: &Rows) -> String {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(rows.columns.iter().map(|name| printable(name)));
    for row in &rows.rows {
        table.add_row(row.iter().map(text));
    }
    for (idx, column) in table.column_iter_mut().enumerate() {
        let last = rows.columns.len() - 1;
        column.set_padding((0, u16::from(idx < last)));
        let is_numeric =
            |row: &Vec<Cell>| matches!(row[idx], Cell::Integer(_) | Cell::Real(_) | Cell::Null);
        if !rows.rows.is_empty() && rows.rows.iter().all(is_numeric) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n")
}

/// The rows as CSV.
///
/// # Errors
/// If `out` refuses them.
pub(crate) fn write_csv(rows: &Rows, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(&rows.columns).map_err(io_error)?;
    for row in &rows.rows {
        let fields = row.iter().map(|cell| match cell {
            Cell::Null => String::new(),
            Cell::Integer(n) => n.to_string(),
            Cell::Real(x) => x.to_string(),
            Cell::Text(text) => text.clone(),
        });
        writer.write_record(fields).map_err(io_error)?;
    }
    writer.flush()
}

fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(source) => source,
        kind => io::Error::other(format!("{kind:?}")),
    }
}

/// A value in a table.
pub(crate) fn text(cell: &Cell) -> String {
    match cell {
        Cell::Null => ABSENT.to_owned(),
        Cell::Integer(n) => n.to_string(),
        Cell::Real(x) => real(*x),
        Cell::Text(text) => printable(text),
    }
}

/// A number in at most six significant digits.
pub(crate) fn real(x: f64) -> String {
    let magnitude = x.abs();
    if x == 0.0 {
        return "0".to_owned();
    }
    if !(1e-4..1e7).contains(&magnitude) {
        return format!("{x:.4e}");
    }
    // Digits before the point, or minus the zeros after it.
    let exponent = magnitude.log10().floor();
    let decimals = (5.0 - exponent).clamp(0.0, 6.0) as usize;
    let fixed = format!("{x:.decimals$}");
    if fixed.contains('.') {
        fixed.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        fixed
    }
}

/// The text with everything that acts on a terminal or a layout written as an escape.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for ch in text.chars() {
        let redirects = matches!(ch, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if ch.is_control() || redirects {
            out.extend(ch.escape_default());
        } else {
            out.push(ch);
        }
    }
    out
}

/// A number of bytes in the largest unit that leaves at least one whole.
pub(crate) fn size(n_bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n_bytes < 1024 {
        return format!("{n_bytes} B");
    }
    let mut value = n_bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_aligns_and_escapes() {
        let mut rows = Rows::new(&["token", "prob"]);
        rows.push(vec![" Paris\n".into(), 0.932_401_895_5_f64.into()]);
        rows.push(vec!["\u{1b}[2J".into(), Cell::Null]);
        rows.push(vec!["\u{6771}\u{4eac}".into(), 1e-9_f64.into()]);
        let want = [
            "token           prob",
            "---------- ---------",
            " Paris\\n    0.932402",
            "\\u{1b}[2J          -",
            "\u{6771}\u{4eac}       1.0000e-9",
        ];
        assert_eq!(render(&rows).lines().collect::<Vec<_>>(), want);
    }

    #[test]
    fn numbers_keep_six_digits() {
        let shown = [
            0.0,
            1.0,
            0.1,
            -2.5,
            123_456.789,
            12_345_678.0,
            0.000_123_456_789,
            99.999_99,
        ];
        let want = [
            "0", "1", "0.1", "-2.5", "123457", "1.2346e7", "0.000123", "100",
        ];
        assert_eq!(shown.map(real), want);
    }

    #[test]
    fn csv_is_whole_and_quoted() {
        let mut rows = Rows::new(&["a", "b"]);
        rows.push(vec!["x,\"y\"\n".into(), 0.1_f32.into()]);
        rows.push(vec![Cell::Null, 3_u32.into()]);
        let mut out = Vec::new();
        write_csv(&rows, &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "a,b\n\"x,\"\"y\"\"\n\",0.1\n,3\n"
        );
    }

    #[test]
    fn sizes_change_unit_at_1024() {
        assert_eq!(
            [1023, 1024, 5 << 30].map(size),
            ["1023 B", "1.0 KiB", "5.0 GiB"]
        );
    }
}
