//! One HTML page that needs nothing else: it has its style sheet and its pictures in itself, follows the reader's theme,
//! and can be read on a phone and printed.

use super::chart::Chart;
use super::escape::escape;
use super::figures::{charts, colour, main_column};
use sim::report::claims::{Claim, Goal, claims};
use sim::report::number::{exact, plain};
use sim::report::table::Table;
use std::fmt::Write;

/// The style sheet of every page.
const STYLE: &str = include_str!("style.css");

/// A page's beginning.
pub fn begin(title: &str) -> String {
    let title = format!("Switchyard: {}", escape(title));
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>\
         <title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    )
}

/// A table's beginning: that of the first columns that are text, then those of numbers.
pub fn head(text: &[&str], numbers: &[&str]) -> String {
    let mut html = "<div class=scroll><table><tr>".to_owned();
    for name in text {
        let _ = write!(html, "<th class=text>{}", escape(name));
    }
    for name in numbers {
        let _ = write!(html, "<th>{}", escape(name));
    }
    html
}

/// All of an experiment: its charts, the paper beside it, ratios, parameters and rows.
pub fn section(table: &Table) -> String {
    let mut html = format!(
        "<section><h3 id={}>{}</h3><p class=note>Seed {}; again with <code>switchyard sim run {} --seed {}</code>.</p>",
        table.name,
        escape(&table.about),
        table.seed,
        table.name,
        table.seed
    );
    let charts = charts(table);
    html.push_str(&legend(&charts));
    html.push_str("<div class=charts>");
    for chart in &charts {
        figure(&mut html, chart, &colour);
    }
    html.push_str("</div>");
    html.push_str(&claimed(&claims(table)));
    html.push_str(&ratios(table));
    if !table.parameters.is_empty() {
        let text = serde_json::to_string_pretty(&table.parameters).expect("maps with text keys are JSON");
        let _ = write!(
            html,
            "<details><summary>Parameters</summary><pre>{}</pre></details>",
            escape(&text)
        );
    }
    html.push_str(&rows(table));
    html.push_str("</section>");
    html
}

/// A chart with its title.
pub fn figure(html: &mut String, chart: &Chart, colour: &dyn Fn(&str) -> String) {
    let _ = write!(
        html,
        "<figure><figcaption>{}</figcaption><div class=scroll>{}</div></figure>",
        escape(&chart.title),
        chart.svg(colour)
    );
}

/// Colours of all series of these charts.
fn legend(charts: &[Chart]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in charts.iter().flat_map(Chart::series) {
        let name = name.split(", ").next().unwrap_or(name);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut html = "<div class=legend>".to_owned();
    for name in names {
        let _ = write!(
            html,
            "<span><i class={}></i>{}</span>",
            colour(name),
            escape(name)
        );
    }
    html + "</div>"
}

/// The papers' numbers beside ours.
fn claimed(claims: &[Claim]) -> String {
    if claims.is_empty() {
        return String::new();
    }
    let mut html = cards(&["", "Paper", "Ours", "Ours / paper", "Target", ""]);
    for claim in claims {
        html.push_str(&what(claim));
        if let Some(paper) = claim.paper {
            let of = match paper.of {
                "" => paper.source.to_owned(),
                of => format!("{of}; {}", paper.source),
            };
            let _ = write!(
                html,
                "<td data-l=Paper>{}<span class=dim>{}</span>",
                plain(paper.value),
                escape(&of)
            );
        } else {
            html.push_str("<td>");
        }
        let _ = write!(html, "<td data-l=Ours>{}", exact(claim.ours));
        html.push_str(&cell("Ours / paper", claim.over_paper().map(exact)));
        html.push_str(&cell("Target", claim.target.map(Goal::text)));
        let _ = write!(html, "<td>{}", verdict(claim));
    }
    html + "</table></div>"
}

/// The beginning of a table whose rows become blocks on a phone.
fn cards(columns: &[&str]) -> String {
    let mut html = "<div class=scroll><table class=cards><tr>".to_owned();
    for column in columns {
        let _ = write!(html, "<th>{column}");
    }
    html
}

/// A cell that names its column on a phone, or an empty one.
fn cell(column: &str, text: Option<String>) -> String {
    text.map_or_else(
        || "<td>".to_owned(),
        |text| format!("<td data-l='{column}'>{text}"),
    )
}

/// The first cell of a claim.
fn what(claim: &Claim) -> String {
    format!(
        "<tr><td class='text first'>{}<span class=dim>{}</span>",
        escape(&claim.what),
        escape(&claim.place)
    )
}

fn verdict(claim: &Claim) -> String {
    let class = match claim.is_met() {
        Some(true) => "met",
        Some(false) => "short",
        None => "dim",
    };
    match claim.verdict() {
        "" => String::new(),
        text => format!("<span class='verdict {class}'>{text}</span>"),
    }
}

/// A target of the whole: what it is, what came out, what it is to be, whether that is so if it is known.
pub struct Overall {
    /// Its subject.
    pub what: &'static str,
    /// The source of the figure, if this report has none.
    pub place: &'static str,
    /// Result.
    pub ours: String,
    /// Its goal.
    pub target: &'static str,
    /// Whether it is.
    pub is_met: Option<bool>,
}

/// The targets of all tables, and those of the whole.
pub fn targets(tables: &[Table], overall: &[Overall]) -> String {
    let mut html = cards(&["", "Figure", "Target", "Computed", ""]);
    for table in tables {
        for claim in claims(table).iter().filter(|claim| claim.target.is_some()) {
            html.push_str(&what(claim));
            html.push_str(&cell(
                "Figure",
                Some(format!("<a href='#{0}'>{0}</a>", table.name)),
            ));
            html.push_str(&cell("Target", claim.target.map(Goal::text)));
            html.push_str(&cell("Computed", Some(exact(claim.ours))));
            let _ = write!(html, "<td>{}", verdict(claim));
        }
    }
    for line in overall {
        let verdict = match line.is_met {
            Some(true) => "<span class='verdict met'>met</span>",
            Some(false) => "<span class='verdict short'>falls short</span>",
            None => "<span class='verdict dim'>not told</span>",
        };
        let _ = write!(
            html,
            "<tr><td class='text first'>{}<span class=dim>{}</span><td data-l=Figure>all<td data-l=Target>{}<td data-l=Computed>{}<td>{verdict}",
            escape(line.what),
            escape(line.place),
            escape(line.target),
            escape(&line.ours)
        );
    }
    html + "</table></div>"
}

/// Quotients of what the figure is about, between systems that are often compared.
fn ratios(table: &Table) -> String {
    const PAIRS: [[&str; 2]; 13] = [
        ["vdc", "rackblox"],
        ["vdc-unshaped", "rackblox-coord-io"],
        ["rackblox-software", "rackblox"],
        ["rackblox", "ideal"],
        ["switchyard", "ideal"],
        ["vdc", "switchyard"],
        ["linux", "blk-switch"],
        ["blk-switch", "switchyard"],
        ["linux", "switchyard"],
        ["fifo", "coordinated"],
        ["fifo", "fifo+coordination"],
        ["deadline", "deadline+coordination"],
        ["kyber", "kyber+coordination"],
    ];
    let column = main_column(table);
    let groups = table.groups();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let mut html = String::new();
    for [above, below] in PAIRS {
        let found = table.ratios(&column, above, below);
        if found.is_empty() {
            continue;
        }
        if html.is_empty() {
            html = head(&[&format!("Ratios of {column}")], &groups);
        }
        let _ = write!(html, "<tr><td class=text>{above} / {below}");
        for group in &groups {
            let ratio = found.iter().find(|(name, _)| name == group);
            let _ = write!(
                html,
                "<td>{}",
                ratio.map_or_else(|| "–".to_owned(), |(_, ratio)| format!("{ratio:.2}"))
            );
        }
    }
    if html.is_empty() {
        html
    } else {
        html + "</table></div>"
    }
}

/// Every row, with all columns that have a number.
fn rows(table: &Table) -> String {
    let columns = table.columns.iter().map(String::as_str);
    let columns: Vec<&str> = columns.filter(|column| table.has(column)).collect();
    let mut html = format!("<details><summary>All rows ({})</summary>", table.lines.len());
    html.push_str(&head(&["policy", "workload", ""], &columns));
    for line in &table.lines {
        let class = if line.policy == "switchyard" {
            " class=ours"
        } else {
            ""
        };
        let _ = write!(
            html,
            "<tr{class}><td class=text>{}<td class=text>{}<td class=text>{}",
            escape(&line.policy),
            escape(&line.workload),
            escape(if line.parameters.is_empty() {
                ""
            } else {
                &line.group
            })
        );
        for column in &columns {
            let _ = write!(html, "<td>{}", plain(table.value(line, column)));
        }
    }
    html + "</table></div></details>"
}
