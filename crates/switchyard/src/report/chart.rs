//! Charts as SVG that a page holds: grouped bars, and lines. Colours are classes of the page's style sheet, so that
//! they follow its theme; a bar or point tells its number when pointed at.

use super::escape::escape;
use sim::report::number::plain;
use std::fmt::Write;

/// Height of the plot, and what is above and below it. Lengths are in CSS pixels.
const PLOT_HEIGHT: f64 = 210.0;
const ABOVE: f64 = 10.0;
const BELOW: f64 = 44.0;
/// Left of the plot, for its scale; right of it, and right of it if references are named there.
const LEFT: f64 = 50.0;
const RIGHT: f64 = 12.0;
const REFERENCES: f64 = 124.0;
/// Width of the plot: of lines, and of bars at least.
const LINES_WIDTH: f64 = 430.0;
const BARS_WIDTH_MIN: f64 = 280.0;
/// Bars and the gaps between their groups; few bars are wider.
const BAR: (f64, f64) = (8.0, 26.0);
const GROUP_GAP: f64 = 9.0;
/// A character of a group's label, about.
const CHARACTER: f64 = 6.4;
/// Distance of references' names at least.
const NAME_HEIGHT: f64 = 12.0;

/// Where rules may be within a decade.
const STEPS: [f64; 4] = [1.0, 2.0, 5.0, 10.0];

/// How a number becomes a height.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// In proportion, from zero.
    Linear,
    /// In proportion, from one: for quotients that are at least one.
    FromOne,
    /// In decades, for what differs by orders of magnitude.
    Logarithmic,
    /// Shares below 1 by their distance from it: 0.9, 0.99, 0.999 are equally far apart.
    Nines,
}

/// Kind of a chart.
#[derive(Clone, Debug, PartialEq)]
pub enum Marks {
    /// For each group a bar of each series.
    Bars {
        /// Their labels.
        groups: Vec<String>,
        /// Name, and a number for each group; not a number leaves a gap.
        series: Vec<(String, Vec<f64>)>,
    },
    /// For each series a line through points from left to right.
    Lines {
        /// Of the horizontal axis.
        scale: Scale,
        /// Name and points.
        series: Vec<(String, Vec<(f64, f64)>)>,
    },
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Its message, with the unit.
    pub title: String,
    /// Meaning of the horizontal axis.
    pub across: String,
    /// Of the vertical axis.
    pub scale: Scale,
    /// Bars or lines.
    pub marks: Marks,
    /// Values that somebody else reports, drawn as dashed lines with their names.
    pub references: Vec<(String, f64)>,
    /// Least reach of the vertical axis, so that charts beside each other compare.
    pub reach: f64,
}

impl Chart {
    /// Names of its series.
    pub fn series(&self) -> Vec<&str> {
        match &self.marks {
            Marks::Bars { series, .. } => series.iter().map(|(name, _)| name.as_str()).collect(),
            Marks::Lines { series, .. } => series.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// As an SVG element. `colour` gives the class of a series.
    pub fn svg(&self, colour: &dyn Fn(&str) -> String) -> String {
        let width = self.plot_width();
        let right = if self.references.is_empty() {
            RIGHT
        } else {
            REFERENCES
        };
        let frame = Frame {
            width,
            up: Axis::new(self.scale, self.heights(), PLOT_HEIGHT),
        };
        let (whole, high) = (LEFT + width + right, ABOVE + PLOT_HEIGHT + BELOW);
        let mut svg = format!(
            "<svg viewBox='0 0 {whole:.0} {high:.0}' style='--w:{whole:.0}px' role=img aria-label='{}'>",
            escape(&self.title)
        );
        frame.rules(&mut svg);
        match &self.marks {
            Marks::Bars { groups, series } => frame.bars(&mut svg, groups, series, colour),
            Marks::Lines { scale, series } => frame.lines(&mut svg, *scale, series, colour),
        }
        frame.references(&mut svg, &self.references);
        let _ = write!(
            svg,
            "<text class=axis x={:.0} y={:.0} text-anchor=middle>{}</text></svg>",
            LEFT + width / 2.0,
            high - 6.0,
            escape(&self.across)
        );
        svg
    }

    fn plot_width(&self) -> f64 {
        match &self.marks {
            Marks::Lines { .. } => LINES_WIDTH,
            Marks::Bars { groups, series } => {
                let label = groups
                    .iter()
                    .map(|group| group.chars().count())
                    .max()
                    .unwrap_or(0);
                let group = (series.len() as f64 * BAR.0).max(label as f64 * CHARACTER) + GROUP_GAP;
                (groups.len() as f64 * group).max(BARS_WIDTH_MIN)
            }
        }
    }

    /// Everything that the vertical axis must reach.
    pub fn heights(&self) -> Vec<f64> {
        let mut heights: Vec<f64> = match &self.marks {
            Marks::Bars { series, .. } => series.iter().flat_map(|(_, values)| values.clone()).collect(),
            Marks::Lines { series, .. } => series
                .iter()
                .flat_map(|(_, points)| points.iter().map(|point| point.1))
                .collect(),
        };
        heights.extend(self.references.iter().map(|(_, value)| value));
        heights.push(self.reach);
        heights.retain(|height| height.is_finite());
        heights
    }
}

/// Numbers along a length.
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    length: f64,
}

impl Axis {
    fn new(scale: Scale, numbers: Vec<f64>, length: f64) -> Self {
        let positive = || numbers.iter().copied().filter(|number| *number > 0.0);
        let largest = positive().reduce(f64::max).unwrap_or(1.0);
        let smallest = positive().fold(largest, f64::min);
        let (from, to) = match scale {
            Scale::Linear => (0.0, ceil_to(largest, linear_step(largest))),
            Scale::FromOne => {
                let above = (largest - 1.0).max(0.1);
                (1.0, 1.0 + ceil_to(above, linear_step(above)))
            }
            // The smallest is to be seen as well, so there is some room below it.
            Scale::Logarithmic => {
                let round = |number: f64| STEPS.map(|step| step * 10f64.powf(number.log10().floor()));
                let (below, above) = (round(smallest * 0.7), round(largest));
                (
                    below
                        .into_iter()
                        .rfind(|step| *step <= smallest * 0.7)
                        .unwrap_or(below[0]),
                    above.into_iter().find(|step| *step >= largest).unwrap_or(largest),
                )
            }
            Scale::Nines => (0.0, positive().fold(0.9, f64::max)),
        };
        Self {
            scale,
            from,
            to,
            length,
        }
    }

    fn place(&self, number: f64) -> f64 {
        let at = |number: f64| match self.scale {
            Scale::Linear | Scale::FromOne => number,
            Scale::Logarithmic => number.max(self.from).log10(),
            Scale::Nines => -(1.0 - number).max(1e-9).log10(),
        };
        let (from, to) = (at(self.from), at(self.to));
        ((at(number) - from) / (to - from)).clamp(0.0, 1.0) * self.length
    }

    /// Where rules are drawn, and their names.
    fn ticks(&self) -> Vec<(f64, String)> {
        let numbers: Vec<f64> = match self.scale {
            Scale::Linear | Scale::FromOne => {
                let step = linear_step(self.to - self.from);
                let ticks = (0..).map(|i| self.from + f64::from(i) * step);
                ticks.take_while(|tick| *tick <= self.to * 1.001).collect()
            }
            Scale::Logarithmic => {
                let decades = (self.to / self.from).log10();
                let within = if decades > 3.0 { &STEPS[..1] } else { &STEPS[..3] };
                let first = self.from.log10().floor() as i32;
                let all =
                    (first..first + 12).flat_map(|power| within.iter().map(move |i| i * 10f64.powi(power)));
                all.skip_while(|tick| *tick < self.from * 0.999)
                    .take_while(|tick| *tick <= self.to * 1.001)
                    .collect()
            }
            Scale::Nines => [0.5, 0.9, 0.99, 0.999, 0.9999]
                .into_iter()
                .filter(|tick| *tick <= self.to)
                .collect(),
        };
        let name = |tick: f64| match self.scale {
            Scale::Nines => format!("{}%", (tick * 1e4).round() / 1e2),
            _ => plain(tick),
        };
        numbers.into_iter().map(|tick| (tick, name(tick))).collect()
    }
}

/// 1, 2 or 5 times a power of ten, at least a fifth of `largest`.
fn linear_step(largest: f64) -> f64 {
    let power = 10f64.powf((largest / 5.0).log10().floor());
    let steps = STEPS.map(|step| step * power);
    steps
        .into_iter()
        .find(|step| *step >= largest / 5.001)
        .unwrap_or(largest)
}

fn ceil_to(number: f64, step: f64) -> f64 {
    (number / step - 1e-9).ceil() * step
}

/// The plot's place in the picture.
struct Frame {
    width: f64,
    up: Axis,
}

impl Frame {
    fn y(&self, number: f64) -> f64 {
        ABOVE + PLOT_HEIGHT - self.up.place(number)
    }

    fn rules(&self, svg: &mut String) {
        for (tick, name) in self.up.ticks() {
            let y = self.y(tick);
            let _ = write!(
                svg,
                "<path class=rule d='M{LEFT} {y:.1}h{:.0}'/><text x={:.0} y={:.1} text-anchor=end>{name}</text>",
                self.width,
                LEFT - 6.0,
                y + 4.0
            );
        }
    }

    fn bars(
        &self,
        svg: &mut String,
        groups: &[String],
        series: &[(String, Vec<f64>)],
        colour: &dyn Fn(&str) -> String,
    ) {
        let group_width = self.width / groups.len().max(1) as f64;
        let bar = ((group_width - GROUP_GAP) / series.len().max(1) as f64).min(BAR.1);
        for (index, group) in groups.iter().enumerate() {
            let middle = LEFT + (index as f64 + 0.5) * group_width;
            let first = middle - bar * series.len() as f64 / 2.0;
            for (place, (name, values)) in series.iter().enumerate() {
                let value = values[index];
                if !value.is_finite() {
                    continue;
                }
                let height = self.up.place(value).max(0.5);
                let _ = write!(
                    svg,
                    "<rect class='{}' x={:.1} y={:.1} width={:.1} height={height:.1}><title>{}, {}: {}</title></rect>",
                    colour(name),
                    first + place as f64 * bar,
                    ABOVE + PLOT_HEIGHT - height,
                    bar - 1.0,
                    escape(group),
                    escape(name),
                    plain(value)
                );
            }
            let _ = write!(
                svg,
                "<text x={middle:.1} y={:.0} text-anchor=middle>{}</text>",
                ABOVE + PLOT_HEIGHT + 17.0,
                escape(group)
            );
        }
    }

    fn lines(
        &self,
        svg: &mut String,
        scale: Scale,
        series: &[(String, Vec<(f64, f64)>)],
        colour: &dyn Fn(&str) -> String,
    ) {
        let across = series
            .iter()
            .flat_map(|(_, points)| points.iter().map(|point| point.0));
        let across = Axis::new(scale, across.filter(|x| x.is_finite()).collect(), self.width);
        for (tick, name) in across.ticks() {
            let _ = write!(
                svg,
                "<text x={:.1} y={:.0} text-anchor=middle>{name}</text>",
                LEFT + across.place(tick),
                ABOVE + PLOT_HEIGHT + 17.0
            );
        }
        for (name, points) in series {
            let class = colour(name);
            let points = points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
            let at = |&(x, y): &(f64, f64)| (LEFT + across.place(x), self.y(y));
            let path: Vec<String> = points
                .clone()
                .map(at)
                .map(|(x, y)| format!("{x:.1} {y:.1}"))
                .collect();
            let _ = write!(svg, "<polyline class='{class}' points='{}'/>", path.join(" "));
            for point in points {
                let (x, y) = at(point);
                let _ = write!(
                    svg,
                    "<circle class='{class}' cx={x:.1} cy={y:.1} r=3><title>{}: {} at {}</title></circle>",
                    escape(name),
                    plain(point.1),
                    plain(point.0)
                );
            }
        }
    }

    fn references(&self, svg: &mut String, references: &[(String, f64)]) {
        let mut from_bottom: Vec<&(String, f64)> = references.iter().collect();
        from_bottom.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut free = f64::INFINITY;
        for (name, value) in from_bottom {
            let y = self.y(*value);
            let name_y = (y + 4.0).min(free);
            free = name_y - NAME_HEIGHT;
            let _ = write!(
                svg,
                "<path class=reference d='M{LEFT} {y:.1}h{:.0}'/><text class=reference x={:.0} y={name_y:.1}>{}</text>",
                self.width,
                LEFT + self.width + 5.0,
                escape(name)
            );
        }
    }
}

/// Place of a latency on the scale of [`spread`], 0 to 300.
fn place(us: f64) -> f64 {
    us.max(1.0).log10().min(5.0) * 60.0
}

/// A bar from nothing to the median, and on to P99.9, 1 µs to 100 ms.
pub fn spread(p50_us: f64, p999_us: f64) -> String {
    let (p50, p999) = (place(p50_us), place(p999_us));
    format!(
        "<svg viewBox='0 0 300 12' role=img aria-label='p50 {p50_us:.0} µs, p99.9 {p999_us:.0} µs'>\
         <rect class=far width={p999:.0} height=12 /><rect class=c-blue width={p50:.0} height=12 /></svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(scale: Scale, values: Vec<f64>) -> Chart {
        Chart {
            title: "t".to_owned(),
            across: "x".to_owned(),
            scale,
            marks: Marks::Bars {
                groups: (0..values.len()).map(|i| format!("g{i}")).collect(),
                series: vec![("a<b".to_owned(), values)],
            },
            references: vec![("paper: 8".to_owned(), 8.0), ("paper: 8.1".to_owned(), 8.1)],
            reach: 0.0,
        }
    }

    #[test]
    fn scales_begin_and_end_where_people_expect() {
        let ticks = |scale, numbers: &[f64]| -> Vec<String> {
            Axis::new(scale, numbers.to_vec(), 100.0)
                .ticks()
                .into_iter()
                .map(|tick| tick.1)
                .collect()
        };
        assert_eq!(
            ticks(Scale::Linear, &[3.0, 22.1]),
            ["0", "5", "10", "15", "20", "25"]
        );
        assert_eq!(
            ticks(Scale::Linear, &[10_000.0]),
            ["0", "2,000", "4,000", "6,000", "8,000", "10,000"]
        );
        assert_eq!(
            ticks(Scale::Logarithmic, &[14.0, 1_143.0]),
            ["5", "10", "20", "50", "100", "200", "500", "1,000", "2,000"]
        );
        assert_eq!(ticks(Scale::Nines, &[0.5, 0.999]), ["50%", "90%", "99%", "99.9%"]);
        let axis = Axis::new(Scale::Logarithmic, vec![10.0, 1_000.0], 100.0);
        assert_eq!((axis.place(10.0) > 0.0, axis.place(1_000.0)), (true, 100.0));
        assert_eq!((place(0.5), place(10.0), place(1e9)), (0.0, 60.0, 300.0));
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let texts = [
            0.0,
            0.01234,
            0.5,
            4.4,
            12.34,
            99.96,
            1_234_567.8,
            -1_500.0,
            f64::NAN,
        ]
        .map(plain);
        assert_eq!(
            texts,
            [
                "0",
                "0.0123",
                "0.5",
                "4.4",
                "12.3",
                "100",
                "1,234,568",
                "-1,500",
                "–"
            ]
        );
    }

    #[test]
    fn a_chart_without_numbers_is_empty_and_not_wrong() {
        for scale in [Scale::Linear, Scale::FromOne, Scale::Logarithmic, Scale::Nines] {
            for values in [vec![f64::NAN], vec![0.0], vec![]] {
                let mut chart = bars(scale, values);
                chart.references.clear();
                let svg = chart.svg(&|_| "c".to_owned());
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{scale:?}: {svg}");
            }
        }
    }

    #[test]
    fn every_number_is_a_bar_and_references_do_not_cover_each_other() {
        let svg = bars(Scale::Linear, vec![1.0, f64::NAN, 10.0]).svg(&|_| "c".to_owned());
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(svg.contains("g2, a&lt;b: 10") && !svg.contains("NaN"), "{svg}");
        let names = svg.split("<text class=reference").skip(1);
        let heights: Vec<f64> = names
            .map(|name| {
                name.split("y=")
                    .nth(1)
                    .unwrap()
                    .split('>')
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect();
        assert!((heights[0] - heights[1]).abs() >= NAME_HEIGHT, "{heights:?}");
    }
}
