//! The DAG of steps: names, needs, cycles, order, ancestors.

use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use super::diagnostic::{Diagnostic, DiagnosticCode as Code, Sink, listed, quoted};
use super::tree::{Span, item_path};
use crate::plan::STEPS_MAX;

/// A step as the graph sees it. Positions are indices into the document's list.
#[derive(Debug)]
pub(crate) struct GraphStep {
    /// Empty if it has none.
    pub name: String,
    pub name_span: Span,
    pub path: String,
    pub needs: Vec<(String, Span)>,
}

/// A graph without cycles.
#[derive(Debug)]
pub(crate) struct Graph {
    /// Document indices in a topological order, stable by document order.
    pub order: Vec<usize>,
    /// Document indices, ascending, per step.
    pub needs: Vec<Vec<usize>>,
    /// Bit per document index.
    ancestors: Vec<u64>,
}

// One bit a step.
const _: () = assert!(STEPS_MAX <= 64);

impl Graph {
    pub fn is_ancestor(&self, ancestor: usize, of: usize) -> bool {
        self.ancestors[of] & (1 << ancestor) != 0
    }

    pub fn is_needed(&self, step: usize) -> bool {
        self.needs.iter().any(|needs| needs.contains(&step))
    }
}

/// Reports what is wrong; none if there is a cycle.
pub(crate) fn check(steps: &[GraphStep], sink: &mut Sink) -> Option<Graph> {
    if steps.len() > STEPS_MAX {
        return None;
    }
    let mut needs: Vec<Vec<usize>> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let first = steps[..index].iter().find(|other| !step.name.is_empty() && other.name == step.name);
        if let Some(first) = first {
            let message = format!(
                "a second step is called {}; the first is on line {}",
                quoted(&step.name),
                first.name_span.line
            );
            let path = format!("{}.name", step.path);
            sink.push(
                Diagnostic::error(Code::DuplicateStep, step.name_span, &path, message)
                    .expected("another name"),
            );
        }
        needs.push(resolve_needs(steps, step, sink));
    }
    if report_cycles(steps, &needs, sink) {
        return None;
    }
    let mut order: Vec<usize> = Vec::new();
    let mut ancestors = vec![0u64; steps.len()];
    while order.len() < steps.len() {
        // The first of the document whose needs are placed; there is one, as there is no cycle.
        let next = (0..steps.len())
            .find(|step| !order.contains(step) && needs[*step].iter().all(|need| order.contains(need)))?;
        if needs[next].len() < steps[next].needs.len() {
            // One of its needs is reported already: nothing more can be said about what precedes it.
            ancestors[next] = !(1 << next);
        }
        for &need in &needs[next] {
            ancestors[next] |= ancestors[need] | (1 << need);
        }
        order.push(next);
    }
    Some(Graph { order, needs, ancestors })
}

fn resolve_needs(steps: &[GraphStep], step: &GraphStep, sink: &mut Sink) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    for (position, (need, span)) in step.needs.iter().enumerate() {
        let path = item_path(&format!("{}.needs", step.path), position);
        match steps.iter().position(|other| other.name == *need) {
            None => {
                let names = || steps.iter().map(|other| other.name.as_str()).filter(|name| !name.is_empty());
                let message = format!("there is no step {}", quoted(need));
                let fault = Diagnostic::error(Code::UnknownStep, *span, &path, message);
                sink.push(fault.expected(format!("one of {}", listed(names()))).nearest(need, names()));
            }
            Some(other) if found.contains(&other) => {
                let message = format!("{} is needed twice", quoted(need));
                sink.push(
                    Diagnostic::error(Code::BadValue, *span, &path, message).expected("each step once"),
                );
            }
            Some(other) => found.push(other),
        }
    }
    found.sort_unstable();
    found
}

/// One diagnostic per circle of steps.
fn report_cycles(steps: &[GraphStep], needs: &[Vec<usize>], sink: &mut Sink) -> bool {
    let mut graph: DiGraph<(), ()> = DiGraph::with_capacity(steps.len(), needs.iter().map(Vec::len).sum());
    let nodes: Vec<NodeIndex> = steps.iter().map(|_| graph.add_node(())).collect();
    for (step, needs) in needs.iter().enumerate() {
        for &need in needs {
            graph.add_edge(nodes[step], nodes[need], ());
        }
    }
    let mut found = false;
    for component in tarjan_scc(&graph) {
        let members: Vec<usize> = component.iter().map(|node| node.index()).collect();
        let Some(&start) = members.iter().min() else { continue };
        if members.len() == 1 && !needs[start].contains(&start) {
            continue;
        }
        found = true;
        let circle = shortest_circle(needs, &members, start);
        let shown = circle.iter().chain([&start]).map(|&step| steps[step].name.as_str()).collect::<Vec<_>>();
        let lines = circle
            .iter()
            .map(|&step| format!("{} on line {}", quoted(&steps[step].name), steps[step].name_span.line))
            .collect::<Vec<_>>();
        let message =
            format!("steps need each other in a circle: {} ({})", shown.join(" -> "), lines.join(", "));
        let next = circle.get(1).copied().unwrap_or(start);
        let (position, span) = steps[start]
            .needs
            .iter()
            .enumerate()
            .find(|(_, (need, _))| *need == steps[next].name)
            .map_or((0, steps[start].name_span), |(position, (_, span))| (position, *span));
        let path = item_path(&format!("{}.needs", steps[start].path), position);
        let fault = Diagnostic::error(Code::DagCycle, span, &path, message);
        sink.push(fault.expected("needs that lead from each step to earlier ones only"));
    }
    found
}

/// A shortest way from `start` along `needs` back to `start`.
fn shortest_circle(needs: &[Vec<usize>], members: &[usize], start: usize) -> Vec<usize> {
    let mut ways: Vec<Vec<usize>> = vec![vec![start]];
    let mut seen: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < ways.len() {
        let way = ways[at].clone();
        let last = way[way.len() - 1];
        for &next in needs[last].iter().filter(|next| members.contains(next)) {
            if next == start {
                return way;
            }
            if !seen.contains(&next) {
                seen.push(next);
                ways.push(way.iter().copied().chain([next]).collect());
            }
        }
        at += 1;
    }
    vec![start]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(needs: &[&[usize]]) -> Vec<GraphStep> {
        let step = |(index, needs): (usize, &&[usize])| GraphStep {
            name: format!("s{index}"),
            name_span: Span { line: u32::try_from(index).unwrap() + 1, col: 1, width: 1, ..Span::default() },
            path: item_path("steps", index),
            needs: needs.iter().map(|need| (format!("s{need}"), Span::default())).collect(),
        };
        needs.iter().enumerate().map(step).collect()
    }

    #[test]
    fn the_order_follows_the_document_where_needs_allow_it() {
        let mut sink = Sink::default();
        let graph = check(&steps(&[&[2], &[], &[1], &[]]), &mut sink).unwrap();
        assert_eq!(graph.order, [1, 2, 0, 3]);
        assert!(graph.is_ancestor(1, 0) && !graph.is_ancestor(0, 1) && !graph.is_ancestor(3, 0));
    }

    #[test]
    fn circles_are_shown_from_their_first_step_on() {
        let cases: [(&[&[usize]], &str); 3] = [
            (&[&[0]], "s0 -> s0 (`s0` on line 1)"),
            (&[&[], &[3], &[1], &[2]], "s1 -> s3 -> s2 -> s1"),
            (&[&[1, 2], &[0], &[0]], "s0 -> s1 -> s0"),
        ];
        for (needs, shown) in cases {
            let mut sink = Sink::default();
            assert!(check(&steps(needs), &mut sink).is_none());
            let found = sink.finish("f");
            assert_eq!(found.len(), 1);
            assert!(found[0].message.contains(shown), "{}", found[0].message);
        }
    }

    proptest::proptest! {
        /// Against the plain definition: an order exists iff repeatedly taking steps without open
        /// needs takes them all, and each step comes after what it needs.
        #[test]
        fn orders_and_ancestors_agree_with_the_definition(
            edges in proptest::collection::vec((0usize..12, 0usize..12), 0..20)
        ) {
            let mut needs: Vec<Vec<usize>> = vec![Vec::new(); 12];
            for (from, to) in edges {
                if !needs[from].contains(&to) {
                    needs[from].push(to);
                }
            }
            let slices: Vec<&[usize]> = needs.iter().map(Vec::as_slice).collect();
            let graph = check(&steps(&slices), &mut Sink::default());
            let mut taken = [false; 12];
            for _ in 0..12 {
                for step in 0..12 {
                    taken[step] |= needs[step].iter().all(|&need| taken[need]);
                }
            }
            proptest::prop_assert_eq!(graph.is_some(), taken.iter().all(|&t| t));
            if let Some(graph) = graph {
                for (place, &step) in graph.order.iter().enumerate() {
                    for &need in &needs[step] {
                        proptest::prop_assert!(graph.order[..place].contains(&need));
                        proptest::prop_assert!(graph.is_ancestor(need, step));
                    }
                }
            }
        }
    }
}
