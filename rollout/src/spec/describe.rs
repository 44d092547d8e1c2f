//! What a plan will do, in numbers: `submit --dry-run`.

use std::fmt;

use petgraph::algo::ford_fulkerson;
use petgraph::graph::DiGraph;
use serde::Serialize;

use super::job::critical_path;
use crate::ids::StepIndex;
use crate::plan::{Field, JobPlan, Origin, Per, ResourcesPlan, Split, StepKind};
use crate::quantity::{Bytes, MilliCpu, Request, Resources};
use crate::time::Millis;

/// A plan in numbers. Display gives the lines of `submit --dry-run`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Description {
    pub job: String,
    pub project: Option<String>,
    pub spec_hash: String,
    /// `inline`, `jsonl`, `parquet` or `harbor`.
    pub source: &'static str,
    pub split: Split,
    pub rows: u64,
    pub epochs: u32,
    pub group_size: u32,
    pub groups: u64,
    pub rollouts: u64,
    pub steps: Vec<StepDescription>,
    /// Longest chain of steps, by their timeouts.
    pub critical_path: Vec<String>,
    /// Of one attempt a step; steps whose timeout is looked up per row count as 0.
    pub critical_path_ms: u64,
    /// Whether any timeout is looked up per row.
    pub timeouts_per_row: bool,
    /// The most tries of any step, the first included.
    pub attempts_max: u32,
    pub max_running: u32,
    /// The most rollouts alive at once: `max_running`, or all of them if they are fewer.
    pub running: u64,
    /// What `running` rollouts can ask for at once, in the costliest moment of each; none if a
    /// request is looked up per row.
    pub request: Option<RequestDescription>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepDescription {
    pub name: String,
    pub kind: StepKind,
    pub needs: Vec<String>,
    pub per: Per,
    /// Step whose live sandbox it goes on in.
    pub continues: Option<String>,
    /// Step from whose checkpoint its new sandbox starts; with neither: from the image.
    pub restores: Option<String>,
    pub image: String,
    /// None: looked up per row.
    pub timeout_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RequestDescription {
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

/// Describes `plan` over a task set of `rows` rows.
pub fn describe(plan: &JobPlan, rows: u64) -> Description {
    let name = |index: StepIndex| plan.step(index).name.to_string();
    let steps = plan.steps.iter().map(|step| StepDescription {
        name: step.name.to_string(),
        kind: step.kind,
        needs: step.needs.iter().map(|&need| name(need)).collect(),
        continues: match step.origin {
            Origin::Image | Origin::Checkpoint(_) => None,
            Origin::Live(before) => Some(name(before)),
        },
        per: step.per,
        restores: match step.origin {
            Origin::Image | Origin::Live(_) => None,
            Origin::Checkpoint(before) => Some(name(before)),
        },
        image: step.image.to_string(),
        timeout_ms: match step.timeout {
            Field::Fixed(timeout) => Some(timeout.0),
            Field::PerRow(_) => None,
        },
    });
    let steps: Vec<StepDescription> = steps.collect();
    let (path, total) = critical_path(&plan.steps);
    let groups = rows.saturating_mul(u64::from(plan.tasks.epochs));
    let rollouts = groups.saturating_mul(u64::from(plan.group.size));
    let running = rollouts.min(u64::from(plan.admission.max_running));
    Description {
        job: plan.name.to_string(),
        project: plan.project.clone(),
        spec_hash: plan.spec_hash.clone(),
        source: plan.tasks.source.kind(),
        split: plan.tasks.split,
        rows,
        epochs: plan.tasks.epochs,
        group_size: plan.group.size,
        groups,
        rollouts,
        critical_path: path.iter().map(|&step| plan.steps[step].name.to_string()).collect(),
        critical_path_ms: total.0,
        timeouts_per_row: steps.iter().any(|step| step.timeout_ms.is_none()),
        attempts_max: plan.steps.iter().map(|step| step.retry.limit + 1).max().unwrap_or(1),
        max_running: plan.admission.max_running,
        running,
        request: peak_request(plan).map(|peak| RequestDescription {
            cpu_milli: peak.cpu.0.saturating_mul(running),
            memory_bytes: peak.memory.0.saturating_mul(running),
            disk_bytes: peak.disk.0.saturating_mul(running),
        }),
        steps,
    }
}

/// The most one rollout can hold at once, entry by entry: over all sets of sandboxes that may be
/// up together.
fn peak_request(plan: &JobPlan) -> Option<Request> {
    let heads: Vec<StepIndex> =
        plan.step_indices().filter(|&index| plan.step(index).origin == Origin::Image).collect();
    let mut charges = Vec::new();
    for &head in &heads {
        let mut largest: Option<Resources> = None;
        for index in plan.chain(head) {
            let ResourcesPlan::Fixed(own) = plan.step(index).resources else { return None };
            largest = Some(largest.map_or(own, |so_far| so_far.max(&own)));
        }
        charges.push(largest?.charge());
    }
    let ancestors = ancestors(plan);
    let last = |head: StepIndex| plan.chain(head).last().copied().unwrap_or(head);
    let before = |a: usize, b: usize| ancestors[usize::from(heads[b].0)] & (1 << last(heads[a]).0) != 0;
    let peak = |weight: fn(&Request) -> u64| {
        let weights: Vec<u64> = charges.iter().map(weight).collect();
        heaviest_antichain(&weights, before)
    };
    Some(Request {
        cpu: MilliCpu(peak(|charge| charge.cpu.0)),
        memory: Bytes(peak(|charge| charge.memory.0)),
        disk: Bytes(peak(|charge| charge.disk.0)),
    })
}

/// A bit per step.
fn ancestors(plan: &JobPlan) -> Vec<u64> {
    let mut ancestors: Vec<u64> = Vec::new();
    for step in &plan.steps {
        let bits =
            step.needs.iter().fold(0, |bits, need| bits | ancestors[usize::from(need.0)] | (1 << need.0));
        ancestors.push(bits);
    }
    ancestors
}

/// The largest sum of weights of elements none of which comes before another (Dilworth's theorem
/// with weights: the sum of all, less a largest matching of successors).
fn heaviest_antichain(weights: &[u64], before: impl Fn(usize, usize) -> bool) -> u64 {
    let total: u64 = weights.iter().sum();
    let mut network: DiGraph<(), u64> = DiGraph::new();
    let (source, sink) = (network.add_node(()), network.add_node(()));
    let left: Vec<_> = weights.iter().map(|_| network.add_node(())).collect();
    let right: Vec<_> = weights.iter().map(|_| network.add_node(())).collect();
    for (element, &weight) in weights.iter().enumerate() {
        network.add_edge(source, left[element], weight);
        network.add_edge(right[element], sink, weight);
        for other in (0..weights.len()).filter(|&other| before(element, other)) {
            network.add_edge(left[element], right[other], total);
        }
    }
    let (matched, _) = ford_fulkerson(&network, source, sink);
    total - matched
}

/// `n` with thousands separated.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// About three digits, for people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut unit, mut tenths) = (0, bytes.saturating_mul(10));
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[unit]),
        tenth => format!("{}.{tenth} {}", tenths / 10, UNITS[unit]),
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = self.spec_hash.get(..19).unwrap_or(&self.spec_hash);
        write!(f, "job       {}   spec {hash}...", self.job)?;
        if let Some(project) = &self.project {
            write!(f, "   project {}", crate::text::shown(project, 64))?;
        }
        writeln!(f)?;
        let epochs = if self.epochs == 1 { String::new() } else { format!(" x {} epochs", self.epochs) };
        let split = if self.split == Split::Eval { ", eval" } else { "" };
        writeln!(
            f,
            "tasks     {}{split}, {} rows{epochs} -> {} groups x {} = {} rollouts",
            self.source,
            grouped(self.rows),
            grouped(self.groups),
            self.group_size,
            grouped(self.rollouts)
        )?;
        let steps: Vec<String> = self.steps.iter().map(|step| self.step_line(step)).collect();
        writeln!(f, "plan      {}", steps.join(" -> "))?;
        let per_row = if self.timeouts_per_row { " (and timeouts looked up per row)" } else { "" };
        let chain = self.critical_path.iter().filter_map(|name| {
            let step = self.steps.iter().find(|step| step.name == *name)?;
            Some(step.timeout_ms.map_or_else(|| "?".to_owned(), |timeout| Millis(timeout).to_string()))
        });
        let chain = chain.collect::<Vec<_>>().join(" + ");
        writeln!(
            f,
            "time      critical path {chain} = {}{per_row} per attempt chain; retry up to {} attempts a step",
            Millis(self.critical_path_ms),
            self.attempts_max
        )?;
        let running = if self.running < u64::from(self.max_running) {
            format!("all {} rollouts at once", grouped(self.running))
        } else {
            format!("at max_running {}", grouped(self.running))
        };
        match &self.request {
            Some(request) => writeln!(
                f,
                "request   {running}: cpu {}, memory {}, disk {}",
                MilliCpu(request.cpu_milli),
                size(request.memory_bytes),
                size(request.disk_bytes)
            ),
            None => writeln!(f, "request   {running}: looked up per row"),
        }
    }
}

impl Description {
    /// `grade [grader, fresh, from image]`; needs are shown where they are not the step before.
    fn step_line(&self, step: &StepDescription) -> String {
        let place = self.steps.iter().position(|other| other.name == step.name).unwrap_or(0);
        let before = place.checked_sub(1).map(|before| self.steps[before].name.clone());
        let mut notes = vec![step.per.as_str().to_owned()];
        match (&step.continues, &step.restores) {
            (Some(live), _) => notes.push(format!("in the sandbox of {live}")),
            (None, Some(before)) => notes.push(format!("fresh, from {before}")),
            (None, None) if place > 0 => notes.push("fresh, from image".to_owned()),
            (None, None) => {}
        }
        if place > 0 && step.needs != before.into_iter().collect::<Vec<_>>() {
            let needs = if step.needs.is_empty() { "nothing".to_owned() } else { step.needs.join(", ") };
            notes.push(format!("needs {needs}"));
        }
        format!("{} [{}]", step.name, notes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Against trying every set.
        #[test]
        fn the_heaviest_antichain_is_the_best_of_all_sets(
            weights in proptest::collection::vec(0u64..20, 1..8),
            pairs in proptest::collection::vec((0usize..8, 0usize..8), 0..16),
        ) {
            let n = weights.len();
            // A transitive order, as ancestors are.
            let mut below = vec![vec![false; n]; n];
            for (a, b) in pairs {
                if a < b && b < n {
                    below[a][b] = true;
                }
            }
            for middle in 0..n {
                for a in 0..n {
                    for b in 0..n {
                        below[a][b] |= below[a][middle] && below[middle][b];
                    }
                }
            }
            let best = (0u32..1 << n)
                .filter(|set| {
                    let members: Vec<usize> = (0..n).filter(|&i| set & (1 << i) != 0).collect();
                    members.iter().all(|&a| members.iter().all(|&b| !below[a][b]))
                })
                .map(|set| (0..n).filter(|&i| set & (1 << i) != 0).map(|i| weights[i]).sum::<u64>())
                .max();
            proptest::prop_assert_eq!(Some(heaviest_antichain(&weights, |a, b| below[a][b])), best);
        }
    }

    #[test]
    fn numbers_are_shown_for_people() {
        assert_eq!(
            [grouped(0), grouped(999), grouped(16_000), grouped(1_234_567)],
            ["0", "999", "16,000", "1,234,567"]
        );
        assert_eq!(
            [size(0), size(1536), size(1 << 40), size(768 << 20)],
            ["0 B", "1.5 KiB", "1 TiB", "768 MiB"]
        );
    }
}
