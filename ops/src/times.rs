//! Times that people write: with a zone, or relative to now.
//!
//! A local time that a clock change skips or repeats is refused, never guessed: a sale that opens
//! an hour early or late cannot be taken back.

use jiff::{
    Span, Timestamp, Zoned,
    civil::DateTime,
    fmt::temporal::{Pieces, PiecesOffset},
    tz::{AmbiguousOffset, Offset, TimeZone},
};

/// What may be written; part of every refusal, so that there is always a way out.
pub const FORMS: &str = "write 2026-12-01T20:00:00 Europe/Berlin, 2026-12-01T20:00:00+01:00, 'in 30s' or now";

/// Why a time is refused: one line that says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TimeError(String);

fn refuse<T>(why: String) -> Result<T, TimeError> {
    Err(TimeError(why))
}

/// Reads a time. `now` is what `in …` counts from.
pub fn parse(text: &str, now: Timestamp) -> Result<Timestamp, TimeError> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("now") {
        return Ok(now);
    }
    if let Some(span) = text.strip_prefix("in ") {
        return relative(span, now);
    }
    let (local, zone) = split_zone(text)?;
    let pieces = Pieces::parse(local).map_err(|_| TimeError(format!("{text:?} is not a time; {FORMS}")))?;
    let Some(time) = pieces.time() else {
        return refuse(format!("{text:?} has no time of day; {FORMS}"));
    };
    let annotated = match pieces.time_zone_annotation() {
        Some(zone) => Some(zone.to_time_zone().map_err(|_| unknown_zone(text))?),
        None => None,
    };
    let zone = match (zone, annotated) {
        (Some(_), Some(_)) => return refuse(format!("{text:?} names two zones; {FORMS}")),
        (zone, annotated) => zone.or(annotated),
    };
    let local = pieces.date().to_datetime(time);
    match (zone, pieces.offset()) {
        (None, None) => refuse(format!("{text:?} has no time zone; {FORMS}")),
        (_, Some(PiecesOffset::Zulu)) => at_offset(text, local, Offset::UTC),
        (None, Some(offset)) => at_offset(text, local, numeric(offset)),
        (Some(zone), None) => in_zone(local, &zone),
        (Some(zone), Some(offset)) => in_zone_at_offset(text, local, &zone, numeric(offset)),
    }
}

/// How a time is shown: in the zone it was meant for, when one is known, and in UTC.
pub fn show(ms: i64) -> String {
    match Timestamp::from_millisecond(ms) {
        Ok(at) => format!("{:.0}", at),
        Err(_) => format!("{ms} ms"),
    }
}

/// The time in the zone of this machine, for a person.
pub fn show_here(ms: i64) -> String {
    match Timestamp::from_millisecond(ms) {
        Ok(at) => {
            let here: Zoned = at.to_zoned(TimeZone::system());
            here.strftime("%Y-%m-%d %H:%M:%S %Z").to_string()
        }
        Err(_) => format!("{ms} ms"),
    }
}

/// Reads a length of time (`30s`, `10m`, `1h 30m`, `2 days`), in milliseconds.
pub fn length_ms(text: &str) -> Result<i64, TimeError> {
    let zero = Timestamp::UNIX_EPOCH;
    let after = relative(text, zero)
        .map_err(|_| TimeError(format!("{text:?} is not a length of time; write 30s, 10m, 1h 30m or 2 days")))?;
    Ok(after.as_millisecond())
}

fn relative(span: &str, now: Timestamp) -> Result<Timestamp, TimeError> {
    let not_a_length = || TimeError(format!("'in {span}' is not a time; write 'in 30s', 'in 10m' or 'in 2 days'"));
    let span: Span = span.trim().parse().map_err(|_| not_a_length())?;
    if span.is_negative() {
        return refuse(format!("'in {span}' is in the past; {FORMS}"));
    }
    // Days are 24 hours here: in UTC no day is longer or shorter.
    let then = now.to_zoned(TimeZone::UTC).checked_add(span).map_err(|_| not_a_length())?;
    Ok(then.timestamp())
}

/// Splits `… Europe/Berlin` into the time and the zone behind the last space.
fn split_zone(text: &str) -> Result<(&str, Option<TimeZone>), TimeError> {
    let Some((local, name)) = text.rsplit_once(char::is_whitespace) else {
        return Ok((text, None));
    };
    // A time of day, as in "2026-12-01 20:00", begins with a digit; a zone never does.
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Ok((text, None));
    }
    let zone = TimeZone::get(name).map_err(|_| unknown_zone(name))?;
    Ok((local.trim_end(), Some(zone)))
}

fn unknown_zone(text: &str) -> TimeError {
    TimeError(format!("{text:?} names no time zone that is known; write one like Europe/Berlin or UTC"))
}

fn numeric(offset: PiecesOffset) -> Offset {
    match offset {
        PiecesOffset::Numeric(numeric) => numeric.offset(),
        _ => Offset::UTC,
    }
}

fn at_offset(text: &str, local: DateTime, offset: Offset) -> Result<Timestamp, TimeError> {
    offset.to_timestamp(local).map_err(|_| TimeError(format!("{text:?} is out of range; {FORMS}")))
}

fn in_zone(local: DateTime, zone: &TimeZone) -> Result<Timestamp, TimeError> {
    let name = zone.iana_name().unwrap_or("this zone");
    let ambiguous = zone.to_ambiguous_timestamp(local);
    match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { offset } => at_offset(&local.to_string(), local, offset),
        AmbiguousOffset::Gap { before, after } => {
            let skipped = Span::new().seconds(i64::from(after.seconds() - before.seconds()));
            let hint = local.checked_add(skipped).map_or_else(|_| FORMS.to_owned(), |t| format!("write {t} {name}"));
            refuse(format!(
                "{local} does not exist in {name}: the clocks go from UTC{before} to UTC{after} and skip it; {hint}"
            ))
        }
        AmbiguousOffset::Fold { before, after } => refuse(format!(
            "{local} happens twice in {name}: the clocks go from UTC{before} to UTC{after}; \
             write {local}{} for the first or {local}{} for the second",
            rfc3339(before),
            rfc3339(after)
        )),
    }
}

fn in_zone_at_offset(text: &str, local: DateTime, zone: &TimeZone, offset: Offset) -> Result<Timestamp, TimeError> {
    let name = zone.iana_name().unwrap_or("this zone");
    let fits = match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset: only } => offset == only,
        AmbiguousOffset::Fold { before, after } => offset == before || offset == after,
        AmbiguousOffset::Gap { .. } => return in_zone(local, zone),
    };
    if !fits {
        return refuse(format!("UTC{offset} is not the time of {name} at {local}; leave the offset or the zone out"));
    }
    at_offset(text, local, offset)
}

/// The offset as RFC 3339 writes it, `+01:00`.
fn rfc3339(offset: Offset) -> String {
    let minutes = offset.seconds() / 60;
    let sign = if minutes < 0 { '-' } else { '+' };
    format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn now() -> Timestamp {
        "2026-11-30T12:00:00Z".parse().unwrap()
    }

    fn is(text: &str, expected: &str) {
        let at = parse(text, now()).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(at, expected.parse().unwrap(), "{text}");
    }

    fn refused(text: &str, because: &str) {
        let error = parse(text, now()).unwrap_err().to_string();
        assert!(error.contains(because), "{text}: {error}");
        assert!(error.contains("write") || error.contains("leave"), "no way out: {error}");
        assert!(!error.contains('\n'), "more than a line: {error}");
    }

    #[test]
    fn a_time_with_a_zone_is_read_in_each_form() {
        for text in [
            "2026-12-01T20:00:00 Europe/Berlin",
            "2026-12-01 20:00 Europe/Berlin",
            "2026-12-01T20:00:00[Europe/Berlin]",
            "2026-12-01T20:00:00+01:00[Europe/Berlin]",
            "2026-12-01T20:00:00+01:00",
            "2026-12-01T19:00:00Z",
            "2026-12-01T19:00:00 UTC",
            "2026-12-01T14:00-05:00",
        ] {
            is(text, "2026-12-01T19:00:00Z");
        }
        is("2026-07-01T20:00:00 Europe/Berlin", "2026-07-01T18:00:00Z");
    }

    #[test]
    fn a_relative_time_counts_from_now() {
        is("in 30s", "2026-11-30T12:00:30Z");
        is("in 1h 30m", "2026-11-30T13:30:00Z");
        is("in 2 days", "2026-12-02T12:00:00Z");
        is("now", "2026-11-30T12:00:00Z");
        refused("in a while", "is not a time");
        refused("in -5s", "past");
    }

    #[test]
    fn a_time_without_a_zone_is_refused() {
        refused("2026-12-01T20:00:00", "has no time zone");
        refused("2026-12-01 20:00", "has no time zone");
        refused("2026-12-01 Europe/Berlin", "no time of day");
        refused("tomorrow at eight", "names no time zone");
        refused("20:00", "is not a time");
        refused("", "is not a time");
        refused("2026-12-01T20:00:00 Europe/Bärlin", "names no time zone");
        refused("2026-12-01T20:00:00[Europe/Berlin] Europe/Paris", "two zones");
    }

    #[test]
    fn a_local_time_that_the_clocks_skip_or_repeat_is_refused_with_a_way_out() {
        refused("2027-03-28T02:30:00 Europe/Berlin", "write 2027-03-28T03:30:00 Europe/Berlin");
        refused("2027-03-28T02:30:00+01:00[Europe/Berlin]", "does not exist");
        refused("2026-10-25T02:30:00 Europe/Berlin", "2026-10-25T02:30:00+02:00 for the first");
        refused("2026-12-01T20:00:00+02:00[Europe/Berlin]", "is not the time of Europe/Berlin");
        // With its offset the repeated hour is one moment.
        is("2026-10-25T02:30:00+02:00[Europe/Berlin]", "2026-10-25T00:30:00Z");
        is("2026-10-25T02:30:00+01:00[Europe/Berlin]", "2026-10-25T01:30:00Z");
        // Half an hour, and a zone west of Greenwich.
        refused("2026-10-04T02:15:00 Australia/Lord_Howe", "write 2026-10-04T02:45:00 Australia/Lord_Howe");
        refused("2026-11-01T01:30:00 America/New_York", "2026-11-01T01:30:00-05:00 for the second");
    }

    #[test]
    fn lengths_are_read() {
        assert_eq!(length_ms("10m").unwrap(), 600_000);
        assert_eq!(length_ms("1h 30m").unwrap(), 5_400_000);
        assert_eq!(length_ms("2 days").unwrap(), 172_800_000);
        assert!(length_ms("soon").is_err());
        assert!(length_ms("-5s").is_err());
    }

    proptest! {
        #[test]
        fn what_the_zone_shows_is_read_back_or_refused_as_twofold(seconds in 0i64..4_000_000_000) {
            let zone = TimeZone::get("Europe/Berlin").unwrap();
            let at = Timestamp::from_second(seconds).unwrap();
            let local = zone.to_datetime(at);
            match parse(&format!("{local} Europe/Berlin"), now()) {
                Ok(read) => prop_assert_eq!(read, at),
                Err(error) => prop_assert!(error.to_string().contains("happens twice")),
            }
        }

        #[test]
        fn no_text_breaks_the_reader(text in ".{0,60}") {
            let _ = parse(&text, now());
        }
    }
}
