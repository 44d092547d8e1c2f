//! `resources` of a step: request and limit, flat or nested, over those of `defaults`.

use super::diagnostic::{Diagnostic, DiagnosticCode as Code, Sink};
use super::view::{Found, Layered};
use crate::expression;
use crate::plan::{Field, ResourcesPlan};
use crate::quantity::{Bytes, Limit, MilliCpu, Request, Resources};

/// In the order of [`ResourcesPlan::PerRow`].
pub(crate) const SLOTS: [(&str, &str); 7] = [
    ("request", "cpu"),
    ("request", "memory"),
    ("request", "disk"),
    ("limit", "cpu"),
    ("limit", "memory"),
    ("limit", "disk"),
    ("limit", "pids"),
];

/// `text` in the unit of a slot.
pub(crate) fn parse_slot(key: &str, text: &str) -> Option<u64> {
    match key {
        "cpu" => text.parse::<MilliCpu>().ok().map(|cpu| cpu.0),
        "pids" => text.parse::<u32>().ok().map(u64::from),
        _ => text.parse::<Bytes>().ok().map(|bytes| bytes.0),
    }
}

/// `value` as a spec writes it.
pub(crate) fn show_slot(key: &str, value: u64) -> String {
    match key {
        "cpu" => MilliCpu(value).to_string(),
        "pids" => value.to_string(),
        _ => Bytes(value).to_string(),
    }
}

pub(crate) fn to_slots(resources: &Resources) -> [u64; 7] {
    let Resources { request, limit } = resources;
    [
        request.cpu.0,
        request.memory.0,
        request.disk.0,
        limit.cpu.0,
        limit.memory.0,
        limit.disk.0,
        u64::from(limit.pids),
    ]
}

pub(crate) fn from_slots(slots: [u64; 7]) -> Option<Resources> {
    let [cpu, memory, disk, limit_cpu, limit_memory, limit_disk, pids] = slots;
    Some(Resources {
        request: Request { cpu: MilliCpu(cpu), memory: Bytes(memory), disk: Bytes(disk) },
        limit: Limit {
            cpu: MilliCpu(limit_cpu),
            memory: Bytes(limit_memory),
            disk: Bytes(limit_disk),
            pids: u32::try_from(pids).ok()?,
        },
    })
}

/// The first slot whose request is over its limit: key, request, limit.
pub(crate) fn over_limit(slots: &[u64; 7]) -> Option<(&'static str, u64, u64)> {
    (0..3)
        .find(|&slot| slots[slot] > slots[slot + 3])
        .map(|slot| (SLOTS[slot].1, slots[slot], slots[slot + 3]))
}

/// The first limit of nothing at all: nothing can run in it, and kernels read a size of 0 as none.
pub(crate) fn empty_limit(slots: &[u64; 7]) -> Option<&'static str> {
    SLOTS
        .iter()
        .zip(slots)
        .find(|((side, _), value)| *side == "limit" && **value == 0)
        .map(|((_, key), _)| *key)
}

struct Slot<'t> {
    found: Found<'t>,
    value: Field<u64>,
}

pub(crate) fn read(layers: &Layered<'_>, sink: &mut Sink) -> Option<ResourcesPlan> {
    let defaults = to_slots(&Resources::default());
    let mut slots: [Option<Slot<'_>>; 7] = [const { None }; 7];
    for (slot, (side, key)) in slots.iter_mut().zip(SLOTS) {
        *slot = match find(layers, side, key, sink) {
            None => None,
            Some(found) => Some(Slot { value: value(key, &found)?, found }),
        };
    }
    let value = |slot: usize| slots[slot].as_ref().map(|slot| slot.value.clone());
    let mut fields = defaults.map(Field::Fixed);
    for (slot, field) in fields.iter_mut().enumerate().skip(3) {
        if let Some(value) = value(slot) {
            *field = value;
        }
    }
    for request in 0..3 {
        fields[request] = match (value(request), &fields[request + 3]) {
            (Some(value), _) => value,
            (None, Field::Fixed(limit)) if SLOTS[request].1 != "disk" => {
                Field::Fixed(defaults[request].min(*limit))
            }
            (None, limit) => limit.clone(),
        };
    }
    for (slot, field) in slots.iter().zip(&fields).skip(3) {
        if let (Some(slot), Field::Fixed(0)) = (slot, field) {
            let message = format!("`{}` is a limit of nothing at all", slot.found.path);
            let fault = Diagnostic::error(Code::BadValue, slot.found.node.span, &slot.found.path, message);
            sink.push(fault.expected("more than 0"));
        }
    }
    for request in 0..3 {
        let (Field::Fixed(asked), Field::Fixed(limit)) = (&fields[request], &fields[request + 3]) else {
            continue;
        };
        if asked > limit {
            let place = slots[request].as_ref().or(slots[request + 3].as_ref())?;
            let key = SLOTS[request].1;
            let default = if slots[request + 3].is_none() { " (the default)" } else { "" };
            let message = format!(
                "the request of {key} {} is more than its limit {}{default}",
                show_slot(key, *asked),
                show_slot(key, *limit)
            );
            let fault =
                Diagnostic::error(Code::BadRelation, place.found.node.span, &place.found.path, message);
            sink.push(fault.expected(format!("`resources.limit.{key}` of at least the request")));
        }
    }
    let fixed: Vec<u64> = fields
        .iter()
        .filter_map(|field| if let Field::Fixed(value) = field { Some(*value) } else { None })
        .collect();
    match <[u64; 7]>::try_from(fixed) {
        Ok(slots) => Some(ResourcesPlan::Fixed(from_slots(slots)?)),
        Err(_) => Some(ResourcesPlan::PerRow(Box::new(fields))),
    }
}

/// The nearest layer that writes the slot, flat or nested.
fn find<'t>(layers: &Layered<'t>, side: &str, key: &str, sink: &mut Sink) -> Option<Found<'t>> {
    for layer in layers.layers() {
        let nested = layer.object(side).and_then(|side| side.find(key));
        let flat = layer.find(key);
        if let (Some(nested), Some(flat)) = (&nested, &flat) {
            let message =
                format!("`{key}` beside `{side}.{key}`: `{key}` alone sets request and limit alike");
            let later = if nested.key_span.start > flat.key_span.start { nested } else { flat };
            let fault = Diagnostic::error(Code::BadRelation, later.key_span, &later.path, message);
            sink.push(fault.expected(format!("one of `{key}`, `{side}.{key}`")));
        }
        if nested.is_some() || flat.is_some() {
            return nested.or(flat);
        }
    }
    None
}

fn value(key: &str, found: &Found<'_>) -> Option<Field<u64>> {
    let text = found.node.text()?;
    let template = expression::parse(text).ok()?;
    match template.as_literal() {
        Some(fixed) => parse_slot(key, fixed).map(Field::Fixed),
        None => Some(Field::PerRow(template)),
    }
}
