//! A profile as one page: layers, latencies over time, devices, functions and a flame graph of the kernel's stacks.

use super::text::title;
use crate::report::escape::escape;
use crate::report::page::{begin, head};
use profile::summary::{OperationSummary, StackSummary, Summary, USER};
use sim::report::number::plain;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Kinds of operations that are drawn; the others are in the JSON.
const KINDS_MAX: usize = 12;
/// Functions that are listed.
const FUNCTIONS_MAX: usize = 25;
/// Functions that the poster and its like name: listed whatever their share.
const NAMED: [&str; 8] = [
    "bio_add_page",
    "bio_add_folio",
    "bio_iov_iter_get_pages",
    "submit_bio",
    "blk_mq_submit_bio",
    "blk_finish_plug",
    "io_schedule",
    "iomap_dio_rw",
];
/// Colours of the layers, in their order.
const COLOURS: [&str; 6] = ["c-purple", "c-blue", "c-orange", "c-red", "c-grey", "c-green"];
/// Lengths of the pictures, CSS pixels.
const BAR: (f64, f64) = (900.0, 22.0);
const FLAME: (f64, f64) = (1100.0, 17.0);
const HEAT: (f64, f64) = (900.0, 14.0);
/// A frame of the flame graph narrower than this is not drawn.
const FRAME_MIN: f64 = 0.8;

/// The page.
pub fn render(summary: &Summary) -> String {
    let mut html = begin("where the time of an I/O goes");
    let probes = &summary.probes;
    let _ = write!(
        html,
        "<p class=note><code>{}</code>, {:.2} s, Linux {}. Probes: {:.0} ns an event, {:.1} % of what was measured, taken out \
         below; on a null workload that leaves {:+.1} %. {} events, {} lost; not seen whole: {} operations, {} bios.</p>",
        escape(&summary.target),
        summary.seconds,
        escape(&summary.kernel),
        probes.event_ns,
        probes.share * 100.0,
        probes.null_error * 100.0,
        probes.events,
        probes.lost,
        probes.unclear_operations,
        probes.unclear_bios
    );
    let reached: Vec<&OperationSummary> = summary
        .operations
        .iter()
        .filter(|row| row.reached_device)
        .collect();
    html.push_str("<h2>Layers</h2>");
    legend(&mut html, reached.first().copied());
    let is_own = |row: &&&OperationSummary| !matches!(row.interface.as_str(), "background" | "below");
    for row in reached.iter().filter(is_own).take(KINDS_MAX) {
        operation(&mut html, row);
    }
    html.push_str("<details><summary>What others did meanwhile: background, and what is below a stacked device</summary>");
    for row in reached.iter().filter(|row| !is_own(row)).take(KINDS_MAX) {
        operation(&mut html, row);
    }
    html.push_str("</details><p class=note>The kinds that took the most time; all are in the JSON.</p>");
    heat(&mut html, summary);
    devices(&mut html, summary);
    if let Some(stacks) = &summary.stacks {
        functions(&mut html, stacks);
        flame(&mut html, stacks);
    }
    html.push_str("</html>\n");
    html
}

fn legend(html: &mut String, row: Option<&OperationSummary>) {
    html.push_str("<div class=legend>");
    for (layer, colour) in row.into_iter().flat_map(|row| &row.layers).zip(COLOURS) {
        let _ = write!(html, "<span><i class={colour}></i>{}</span>", escape(&layer.name));
    }
    html.push_str("</div>");
}

/// A kind of operation: a bar of its layers, and their times.
fn operation(html: &mut String, row: &OperationSummary) {
    let _ = write!(
        html,
        "<h3>{}</h3><p class=note>{} operations of {} µs; software {:.1} %; the application took {} µs before each; {} bios, {} \
         merged, {} splits, {} in workers.</p>",
        escape(&title(row)),
        plain(row.count as f64),
        plain(row.times.mean_us),
        row.software_share * 100.0,
        plain(row.application_us),
        plain(row.bios as f64),
        row.merged,
        row.splits,
        row.punted
    );
    let _ = write!(
        html,
        "<svg viewBox='0 0 {0} {1}' style='--w:{0}px' role=img aria-label='share of the layers'>",
        BAR.0, BAR.1
    );
    let mut x = 0.0;
    for (layer, colour) in row.layers.iter().zip(COLOURS) {
        let width = layer.share * BAR.0;
        let _ = write!(
            html,
            "<rect class={colour} x={x:.1} y=0 width={width:.1} height={}><title>{}: {} µs, {:.1} %</title></rect>",
            BAR.1,
            escape(&layer.name),
            plain(layer.times.mean_us),
            layer.share * 100.0
        );
        x += width;
    }
    html.push_str("</svg>");
    html.push_str(&head(
        &["layer"],
        &["mean µs", "%", "p50", "p99", "p99.9", "probes taken out"],
    ));
    for layer in &row.layers {
        let _ = write!(
            html,
            "<tr><td class=text>{}<td>{}<td>{:.1}<td>{}<td>{}<td>{}<td>{}",
            escape(&layer.name),
            plain(layer.times.mean_us),
            layer.share * 100.0,
            plain(layer.times.p50_us),
            plain(layer.times.p99_us),
            plain(layer.times.p999_us),
            plain(layer.probes_us)
        );
    }
    let total = &row.times;
    let _ = write!(
        html,
        "<tr class=ours><td class=text>total<td>{}<td>100<td>{}<td>{}<td>{}<td></table></div>",
        plain(total.mean_us),
        plain(total.p50_us),
        plain(total.p99_us),
        plain(total.p999_us)
    );
}

/// Latencies over time: the darker, the more operations of its column.
fn heat(html: &mut String, summary: &Summary) {
    let heat = &summary.heat;
    if heat.columns.is_empty() || heat.rows_us.is_empty() {
        return;
    }
    const LEFT: f64 = 70.0;
    let (count, rows) = (heat.columns.len(), heat.rows_us.len());
    let (width, height) = (HEAT.0 / count as f64, HEAT.1);
    let high = rows as f64 * height;
    let _ = write!(
        html,
        "<h2>Latency over time</h2><p class=note>Operations that needed the device, by when they ended and how long they took, \
         probes included. A column is {} ms.</p><div class=scroll><svg viewBox='0 0 {1:.0} {2:.0}' style='--w:{1:.0}px' role=img \
         aria-label='latency over time'>",
        plain(heat.column_ms),
        LEFT + HEAT.0 + 10.0,
        high + 24.0
    );
    for (row, us) in heat.rows_us.iter().enumerate().step_by(2) {
        let y = high - row as f64 * height;
        let _ = write!(
            html,
            "<text x={:.0} y={y:.0} text-anchor=end>{} µs</text>",
            LEFT - 6.0,
            plain(*us)
        );
    }
    for (index, column) in heat.columns.iter().enumerate() {
        let most = column.iter().copied().max().unwrap_or(0).max(1) as f64;
        for (row, count) in column.iter().enumerate().filter(|(_, count)| **count > 0) {
            let _ = write!(
                html,
                "<rect class=c-blue opacity={:.2} x={:.1} y={:.1} width={width:.1} height={height:.0}><title>{:.2} s, from {} µs: \
                 {count}</title></rect>",
                0.12 + 0.88 * *count as f64 / most,
                LEFT + index as f64 * width,
                high - (row + 1) as f64 * height,
                index as f64 * heat.column_ms / 1e3,
                plain(heat.rows_us[row])
            );
        }
    }
    let _ = write!(
        html,
        "<text x={LEFT} y={0:.0}>0 s</text><text x={1:.0} y={0:.0} text-anchor=end>{2:.1} s</text></svg></div>",
        high + 17.0,
        LEFT + HEAT.0,
        count as f64 * heat.column_ms / 1e3
    );
}

fn devices(html: &mut String, summary: &Summary) {
    if summary.devices.is_empty() {
        return;
    }
    html.push_str("<h2>Devices</h2><p class=note>Bios of everybody, mean µs. Q: submitted, G: has a request, I: in the scheduler, \
                   D: with the driver, C: done. Probes included.</p>");
    let numbers = [
        "bios",
        "MiB",
        "merged",
        "in flight",
        "Q2G",
        "G2I",
        "I2D",
        "D2C",
        "D2C p99",
    ];
    html.push_str(&head(&["device", "", "scheduler, on"], &numbers));
    for row in &summary.devices {
        let mean = |times: &Option<_>| {
            times.map_or("–".to_owned(), |times: profile::summary::TimeSummary| {
                plain(times.mean_us)
            })
        };
        let _ = write!(
            html,
            "<tr><td class=text>{}<td class=text>{}<td class=text>{} {}<td>{}<td>{}<td>{}<td>{:.1}<td>{}<td>{}<td>{}<td>{}<td>{}",
            escape(&row.device),
            row.action,
            escape(&row.scheduler),
            escape(&row.backed_by.join(", ")),
            plain(row.count as f64),
            plain(row.bytes as f64 / f64::from(1 << 20)),
            row.merged,
            row.depth,
            plain(row.q2g.mean_us),
            mean(&row.g2i),
            mean(&row.i2d),
            plain(row.d2c.mean_us),
            plain(row.d2c.p99_us)
        );
    }
    html.push_str("</table></div>");
}

fn functions(html: &mut String, stacks: &StackSummary) {
    let _ = write!(
        html,
        "<h2>Functions</h2><p class=note>{} samples of processor time, {} a second, {} lost. Waiting takes none.</p>",
        stacks.samples, stacks.hertz, stacks.lost
    );
    html.push_str(&head(
        &["function of the kernel"],
        &["with what it calls, %", "itself, %"],
    ));
    let listed = stacks.functions.iter().enumerate();
    let listed = listed.filter(|(index, row)| *index < FUNCTIONS_MAX || NAMED.contains(&row.name.as_str()));
    for (_, row) in listed {
        let _ = write!(
            html,
            "<tr><td class=text><code>{}</code><td>{:.2}<td>{:.2}",
            escape(&row.name),
            row.all * 100.0,
            row.own * 100.0
        );
    }
    html.push_str("</table></div>");
}

/// A function within its callers.
#[derive(Default)]
struct Frame {
    samples: u64,
    inner: BTreeMap<String, Frame>,
}

impl Frame {
    fn depth(&self) -> usize {
        1 + self.inner.values().map(Self::depth).max().unwrap_or(0)
    }

    /// Draws the frames above `level`, from `x` on. `scale` is the width of a sample.
    fn draw(&self, html: &mut String, mut x: f64, level: usize, scale: f64, high: f64) {
        for (name, frame) in &self.inner {
            let width = frame.samples as f64 * scale;
            if width >= FRAME_MIN {
                let y = high - (level + 1) as f64 * FLAME.1;
                let share = width / FLAME.0 * 100.0;
                let class = if name == USER {
                    "c-grey"
                } else {
                    ["c-orange", "c-orange-light", "c-red"][name.len() % 3]
                };
                let _ = write!(
                    html,
                    "<g><title>{0}: {share:.2} %</title><rect class={class} x={x:.1} y={y:.1} width={1:.1} height={2:.1} rx=1 />",
                    escape(name),
                    width - 0.4,
                    FLAME.1 - 1.0
                );
                let letters = (width / 6.3) as usize;
                if letters > 3 {
                    let short: String = name.chars().take(letters).collect();
                    let _ = write!(
                        html,
                        "<text class=frame x={:.1} y={:.1}>{}</text>",
                        x + 3.0,
                        y + FLAME.1 - 5.0,
                        escape(&short)
                    );
                }
                html.push_str("</g>");
                frame.draw(html, x, level + 1, scale, high);
            }
            x += width;
        }
    }
}

/// Stacks on top of each other: the width of a function is its share.
fn flame(html: &mut String, stacks: &StackSummary) {
    let mut root = Frame::default();
    for (folded, count) in &stacks.folded {
        root.samples += count;
        let mut frame = &mut root;
        for name in folded.split(';') {
            frame = frame.inner.entry(name.to_owned()).or_default();
            frame.samples += count;
        }
    }
    if root.samples == 0 {
        return;
    }
    let high = root.depth() as f64 * FLAME.1;
    let _ = write!(
        html,
        "<h2>Flame graph</h2><p class=note>Callers are below. Point at a frame for its share.</p><div class=scroll><svg \
         viewBox='0 0 {0:.0} {high:.0}' style='--w:{0:.0}px' role=img aria-label='flame graph'>",
        FLAME.0
    );
    root.draw(html, 0.0, 0, FLAME.0 / root.samples as f64, high - FLAME.1);
    html.push_str("</svg></div>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_wide_as_their_share_and_stand_on_their_callers() {
        let stacks = StackSummary {
            samples: 4,
            folded: BTreeMap::from([("call;<read>".to_owned(), 3), (USER.to_owned(), 1)]),
            ..StackSummary::default()
        };
        let mut html = String::new();
        flame(&mut html, &stacks);
        assert_eq!(html.matches("<rect").count(), 3);
        for text in ["call: 75.00 %", "&lt;read&gt;: 75.00 %", "program: 25.00 %"] {
            assert!(html.contains(text), "{text}");
        }
        let y = |name: &str| -> f64 {
            let frame = html.split("<g>").find(|frame| frame.contains(name)).unwrap();
            let y = frame.split(" y=").nth(1).unwrap();
            y.split(' ').next().unwrap().parse().unwrap()
        };
        assert!(y("read") < y("call:"), "what is called is above");
    }
}
