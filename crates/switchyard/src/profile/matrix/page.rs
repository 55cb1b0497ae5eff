//! The matrix as text and as a page, beside what the poster and XRP report.

use super::cell::{Cell, Engine, Found, OWN, Outcome, SYSTEMS};
use crate::machine;
use crate::report::chart::{Chart, Marks, Scale};
use crate::report::escape::escape;
use crate::report::page;
use crate::size::Size;
use sim::report::number::plain;
use std::fmt::Write;

/// The poster's numbers: 1 GB in writes of 100 MB to a preallocated file, ext4 on a SATA SSD, Linux 4.15, with trace-cmd's
/// function graph (§III, Fig. 1). µs.
const POSTER: [(&str, f64, &str); 4] = [
    ("all", 2_398_220.0, "Fig. 1"),
    ("bio_add_page", 489_843.0, "Fig. 1, 20 %"),
    ("submit_bio", 885_274.0, "Fig. 1"),
    ("io_schedule", 734_778.0, "Fig. 1"),
];
/// Its share of software, at least (§III): bio_add_page, and 6 % of splitting and merging.
const POSTER_SHARE: f64 = 0.26;
/// XRP (OSDI'22), Table 1: a read of 512 bytes, ext4 on an Optane P5800X. ns.
const XRP: [(&str, f64); 6] = [
    ("kernel crossing", 351.0),
    ("read system call", 199.0),
    ("ext4", 2006.0),
    ("bio", 379.0),
    ("NVMe driver", 113.0),
    ("device", 3224.0),
];

fn xrp_share() -> f64 {
    let all: f64 = XRP.iter().map(|(_, ns)| ns).sum();
    1.0 - XRP[XRP.len() - 1].1 / all
}

/// A row of the table: what has its sizes side by side.
fn rows(found: &Found) -> Vec<(Cell, Vec<&Outcome>)> {
    let mut rows: Vec<(Cell, Vec<&Outcome>)> = Vec::new();
    for outcome in &found.outcomes {
        let key = Cell {
            bytes: 0,
            ..outcome.cell.clone()
        };
        match rows.iter_mut().find(|(cell, _)| *cell == key) {
            Some((_, outcomes)) => outcomes.push(outcome),
            None => rows.push((key, vec![outcome])),
        }
    }
    let place = |cell: &Cell| SYSTEMS.iter().position(|system| *system == cell.system);
    rows.sort_by_key(|(cell, _)| {
        (
            cell.is_write,
            place(cell),
            cell.engine as u8,
            !cell.is_preallocated,
        )
    });
    rows
}

fn sizes(found: &Found) -> Vec<u64> {
    let mut sizes: Vec<u64> = found.outcomes.iter().map(|outcome| outcome.cell.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn title(cell: &Cell) -> [&str; 4] {
    let allocation = match (cell.system.as_str(), cell.is_preallocated) {
        ("raw" | OWN, _) => "no file",
        (_, true) => "preallocated",
        (_, false) => "not preallocated",
    };
    [
        if cell.is_write { "write" } else { "read" },
        &cell.system,
        cell.engine.name(),
        allocation,
    ]
}

/// The shares of software as text.
pub fn text(found: &Found) -> String {
    let sizes = sizes(found);
    let mut text = format!(
        "software's share of an I/O's time, depth 1, on {} (Linux {})\n{:<6}{:<11}{:<24}{:<17}",
        found.ground, found.kernel, "", "", "", ""
    );
    for size in &sizes {
        let _ = write!(text, "{:>10}", Size(*size).to_string());
    }
    text.push('\n');
    for (cell, outcomes) in rows(found) {
        let [action, system, engine, allocation] = title(&cell);
        let _ = write!(text, "{action:<6}{system:<11}{engine:<24}{allocation:<17}");
        for size in &sizes {
            let outcome = outcomes.iter().find(|outcome| outcome.cell.bytes == *size);
            let share = outcome.map_or("-".to_owned(), |outcome| {
                format!("{:.1} %", outcome.software_share * 100.0)
            });
            let _ = write!(text, "{share:>10}");
        }
        text.push('\n');
    }
    for (cell, why) in &found.refused {
        let _ = writeln!(text, "not measured: {}: {why}", cell.name());
    }
    text
}

fn colour(series: &str) -> String {
    match series {
        "ext4" => "c-blue",
        "xfs" => "c-orange",
        "btrfs" => "c-pink",
        "raw" => "c-grey",
        OWN => "c-green",
        _ => "c-purple",
    }
    .to_owned()
}

/// A chart of shares: sizes across, a bar for each system. Switchyard's target stands in each, as nobody can ask it
/// otherwise than by a network's protocol.
fn chart(found: &Found, is_write: bool, engine: Engine) -> Chart {
    let sizes = sizes(found);
    let share = |system: &str, bytes: u64| {
        let of = |is_preallocated| {
            found.outcomes.iter().find(|outcome| {
                let cell = &outcome.cell;
                let asks = cell.engine == engine || system == OWN;
                (cell.is_write, cell.system.as_str(), cell.bytes) == (is_write, system, bytes)
                    && asks
                    && cell.is_preallocated == is_preallocated
            })
        };
        let outcome = of(true).or_else(|| of(false));
        outcome.map_or(f64::NAN, |outcome| outcome.software_share * 100.0)
    };
    let series = SYSTEMS.iter().map(|system| {
        let shares: Vec<f64> = sizes.iter().map(|bytes| share(system, *bytes)).collect();
        ((*system).to_owned(), shares)
    });
    let action = if is_write { "writes" } else { "reads" };
    Chart {
        title: format!("{action}, {}: software, %", engine.name()),
        across: "bytes a request; preallocated files".to_owned(),
        scale: Scale::Linear,
        marks: Marks::Bars {
            groups: sizes.iter().map(|bytes| Size(*bytes).to_string()).collect(),
            series: series
                .filter(|(_, shares)| shares.iter().any(|share| share.is_finite()))
                .collect(),
        },
        references: match (is_write, engine) {
            (true, Engine::Direct) => vec![("poster, 100 MB ≥".to_owned(), POSTER_SHARE * 100.0)],
            (false, Engine::Direct) => vec![("XRP, 512 B".to_owned(), xrp_share() * 100.0)],
            _ => Vec::new(),
        },
        reach: 100.0,
    }
}

/// The page.
pub fn render(found: &Found) -> String {
    let about = machine::about();
    let mut html = page::begin("where the time of an I/O goes");
    let _ = write!(
        html,
        "<p class=note>Software's share of the time of an I/O at depth 1: all of its time in which the device had nothing of \
         it. {} cells on {}, {}, Linux {}, commit {}, in {:.0} s. The cost of the probes is taken out. Buffered writes have the \
         final fsync in them. The device below a loop device is its file and that file's device.</p>",
        found.outcomes.len(),
        escape(&found.ground),
        escape(&about.processor),
        escape(&found.kernel),
        escape(about.commit),
        found.seconds
    );
    html.push_str("<div class=legend>");
    for system in SYSTEMS {
        let name = if system == OWN {
            "Switchyard's target on the bare device, NBD"
        } else {
            system
        };
        let _ = write!(html, "<span><i class={}></i>{name}</span>", colour(system));
    }
    html.push_str("</div><div class=charts>");
    for engine in [Engine::Direct, Engine::Uring, Engine::Buffered] {
        for is_write in [false, true] {
            page::figure(&mut html, &chart(found, is_write, engine), &colour);
        }
    }
    html.push_str("</div><h2>Software's share, %</h2>");
    let sizes = sizes(found);
    let names: Vec<String> = sizes.iter().map(|bytes| Size(*bytes).to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    html.push_str(&page::head(&["", "on the device", "asked by", "file"], &names));
    for (cell, outcomes) in rows(found) {
        html.push_str(if cell.system == OWN {
            "<tr class=ours>"
        } else {
            "<tr>"
        });
        for part in title(&cell) {
            let _ = write!(html, "<td class=text>{part}");
        }
        for bytes in &sizes {
            match outcomes.iter().find(|outcome| outcome.cell.bytes == *bytes) {
                Some(outcome) => {
                    let _ = write!(
                        html,
                        "<td title='{}'>{:.1}",
                        detail(outcome),
                        outcome.software_share * 100.0
                    );
                }
                None => html.push_str("<td>–"),
            }
        }
    }
    html.push_str("</table></div>");
    refused(&mut html, found);
    references(&mut html);
    cells(&mut html, found);
    html.push_str("</html>\n");
    html
}

/// What a cell is made of, for who points at it.
fn detail(outcome: &Outcome) -> String {
    let layers: Vec<String> = outcome
        .layers
        .iter()
        .map(|(name, us)| format!("{} {} µs", escape(name), plain(*us)))
        .collect();
    format!(
        "{} requests of {} µs: {}",
        outcome.requests,
        plain(outcome.mean_us),
        layers.join(", ")
    )
}

fn refused(html: &mut String, found: &Found) {
    for (cell, why) in &found.refused {
        let _ = write!(
            html,
            "<p class=note>Not measured: {}: {}</p>",
            escape(&cell.name()),
            escape(why)
        );
    }
}

/// Other people's numbers, as theirs.
fn references(html: &mut String) {
    html.push_str(
        "<h2>What others report</h2><p class=note>Theirs, on their machines. The poster (Logan, Kougkas, Sun: Quantifying the \
         Overheads of the Modern Linux I/O Stack) counts as software what it could name, at least 26 %: 20 % bio_add_page, 6 % \
         splitting and merging; its tracer's own cost, some 1.9 µs a call of bio_add_page by its figures, is not taken out. XRP \
         (OSDI'22) counts all but the device.</p>",
    );
    html.push_str(&page::head(
        &["Poster: 1 GB in writes of 100 MB, ext4, SATA SSD, Linux 4.15", ""],
        &["µs", "%"],
    ));
    for (name, us, place) in POSTER {
        let share = us / POSTER[0].1 * 100.0;
        let _ = write!(
            html,
            "<tr><td class=text>{name}<td class=text>{place}<td>{}<td>{share:.1}",
            plain(us)
        );
    }
    html.push_str("</table></div>");
    html.push_str(&page::head(
        &["XRP, Table 1: a read of 512 B, ext4, Optane P5800X"],
        &["ns", "%"],
    ));
    let all: f64 = XRP.iter().map(|(_, ns)| ns).sum();
    for (name, ns) in XRP {
        let _ = write!(
            html,
            "<tr><td class=text>{name}<td>{}<td>{:.1}",
            plain(ns),
            ns / all * 100.0
        );
    }
    let _ = write!(
        html,
        "<tr><td class=text>software in all<td>{}<td>{:.1}</table></div>",
        plain(all * xrp_share()),
        xrp_share() * 100.0
    );
}

/// Every cell with its layers.
fn cells(html: &mut String, found: &Found) {
    let _ = write!(
        html,
        "<details><summary>All cells ({})</summary>",
        found.outcomes.len()
    );
    let numbers = [
        "requests",
        "mean µs",
        "bios each",
        "splits",
        "merges",
        "probes %",
        "lost",
    ];
    html.push_str(&page::head(&["cell", "layers, mean µs"], &numbers));
    for outcome in &found.outcomes {
        let layers: Vec<String> = outcome
            .layers
            .iter()
            .map(|(name, us)| format!("{} {}", escape(name), plain(*us)))
            .collect();
        let _ = write!(
            html,
            "<tr><td class=text>{}<td class=text>{}",
            escape(&outcome.cell.name()),
            layers.join(", ")
        );
        let numbers = [
            outcome.requests as f64,
            outcome.mean_us,
            outcome.bios,
            outcome.splits,
            outcome.merges,
            outcome.probes_share * 100.0,
            outcome.lost as f64,
        ];
        for number in numbers {
            let _ = write!(html, "<td>{}", plain(number));
        }
    }
    html.push_str("</table></div></details>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_on_the_page_and_others_numbers_are_named_as_theirs() {
        let outcome = |system: &str, engine, bytes, software_share| Outcome {
            cell: Cell {
                system: system.to_owned(),
                engine,
                is_write: true,
                is_preallocated: system == "ext4",
                bytes,
            },
            requests: 10,
            mean_us: 100.0,
            layers: vec![("device".to_owned(), 100.0 * (1.0 - software_share))],
            software_share,
            probes_share: 0.01,
            bios: 1.0,
            splits: 0.0,
            merges: 0.0,
            lost: 0,
        };
        let refused = Cell {
            bytes: 4096,
            ..outcome("xfs", Engine::Direct, 4096, 0.0).cell
        };
        let found = Found {
            kernel: "6.1".to_owned(),
            ground: "a <device>".to_owned(),
            outcomes: vec![
                outcome("ext4", Engine::Direct, 4096, 0.375),
                outcome("ext4", Engine::Direct, 1 << 20, 0.125),
                outcome(OWN, Engine::Nbd, 4096, 0.625),
            ],
            refused: vec![(refused, "no mkfs.xfs".to_owned())],
            ..Found::default()
        };
        let page = render(&found);
        for text in [
            "37.5",
            "12.5",
            "62.5",
            "a &lt;device&gt;",
            "no mkfs.xfs",
            "Poster",
            "OSDI'22",
            "48.6",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("NaN") && !page.contains("http"));
        let text = text(&found);
        let line = text.lines().find(|line| line.contains("ext4")).unwrap();
        assert!(line.contains("37.5 %") && line.contains("12.5 %"), "{text}");
        let own = text.lines().find(|line| line.contains(OWN)).unwrap();
        assert!(own.trim_end().ends_with('-'), "{text}");
    }
}
