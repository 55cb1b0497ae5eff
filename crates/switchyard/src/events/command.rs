//! `switchyard events`: what happened in a running part of a rack, and why.

use super::api::{Event, Page};
use super::serve::WAIT_MAX;
use crate::control::client::{Client, RackArgs};
use crate::out;
use clap::{Args, ValueEnum};

/// `switchyard events`.
#[derive(Args)]
#[command(
    after_help = "docs/events.md says of each event what it means and what to do.\n\nExamples:\n  switchyard events\n  \
    switchyard events --follow --level debug\n  switchyard events --json | jq 'select(.name == \"lease-lapsed\")'"
)]
pub struct EventsArgs {
    #[command(flatten)]
    pub rack: RackArgs,
    /// Follow new events until Ctrl-C
    #[arg(long)]
    pub follow: bool,
    /// Show only events after this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub since: u64,
    /// Show events of this level and above
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub level: Level,
}

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Level {
    /// Everything, also routine events
    Debug,
    /// Changes of state
    Info,
    /// Faults
    Warn,
    /// Faults that need an operator
    Error,
}

/// Prints the events of a part of a rack.
pub fn run(args: &EventsArgs) -> anyhow::Result<()> {
    let (client, json) = (Client::new(&args.rack.control), args.rack.json);
    let (mut since, mut wait, mut began) = (args.since, 0, None);
    let mut passes_over = false;
    loop {
        let page: Page = client.events(since, wait)?;
        let is_other = began.is_some_and(|began| began != page.began_ms);
        began = Some(page.began_ms);
        if is_other {
            note(
                json,
                "this part of the rack has started anew: its events begin anew",
            );
            since = 0;
            continue;
        }
        if is_unknown(since, &page) && since == args.since {
            let text = format!("there is no event {since} yet: the numbers begin anew with each start");
            note(json, &text);
            // A number that was never given is answered with all events.
            passes_over = true;
        }
        if page.missed > 0 && since > 0 && !passes_over {
            note(
                json,
                &format!(
                    "{} events were dropped: newer ones took their places",
                    page.missed
                ),
            );
        }
        for event in &page.events {
            let level = Level::from_str(&event.level, false).unwrap_or(Level::Error);
            if level >= args.level && !passes_over {
                print(json, event)?;
            }
        }
        out::flush();
        let is_last = page.events.is_empty() || page.next == since;
        passes_over &= !is_last;
        since = page.next;
        if out::is_lost() || is_last && !args.follow {
            return Ok(());
        }
        wait = if args.follow { WAIT_MAX / 2 } else { 0 };
    }
}

/// True if the events that were asked for, after this number, are those of another start, or none are.
fn is_unknown(since: u64, page: &Page) -> bool {
    since > page.next
}

fn note(json: bool, text: &str) {
    match json {
        true => eprintln!("switchyard: {text}"),
        false => println!("      {text}"),
    }
}

fn print(json: bool, event: &Event) -> anyhow::Result<()> {
    match json {
        true => println!("{}", serde_json::to_string(event)?),
        false => println!("{}", line(event)),
    }
    Ok(())
}

fn line(event: &Event) -> String {
    let again = match (event.repeats, &event.last_time) {
        (0, _) | (_, None) => String::new(),
        (repeats, Some(last)) => format!(" ({repeats} times more, last at {last})"),
    };
    format!(
        "{:<5} {} {:<5} {} {}: {}{again}",
        event.sequence, event.time, event.level, event.source, event.name, event.text
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// bug: `events --since 9999999` printed all events.
    #[test]
    fn a_number_that_no_event_had_is_told_from_one_that_is_the_newest() {
        let page = Page {
            next: 7,
            ..Page::default()
        };
        assert!(!is_unknown(0, &page) && !is_unknown(7, &page) && is_unknown(8, &page));
    }

    #[test]
    fn a_line_tells_when_who_what_and_how_often() {
        let event = Event {
            sequence: 7,
            time: "2026-11-22T20:18:41.123Z".into(),
            level: "warn".into(),
            source: "tor".into(),
            name: "lease-lapsed".into(),
            text: "Nobody knows why.".into(),
            repeats: 2,
            last_time: Some("2026-11-22T20:18:42.000Z".into()),
            ..Event::default()
        };
        assert_eq!(
            line(&event),
            "7     2026-11-22T20:18:41.123Z warn  tor lease-lapsed: Nobody knows why. (2 times more, last at \
             2026-11-22T20:18:42.000Z)"
        );
        assert!(Level::Debug < Level::Info && Level::Warn < Level::Error);
    }
}
