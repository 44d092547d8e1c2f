//! What a sandbox that was made ahead and is used once cannot be: over another workspace, under one, or
//! of a shape that the pool does not have.

use super::diagnostic::{Diagnostic, DiagnosticCode as Code, Sink, quoted};
use super::step::Users;
use super::steps::{StepDoc, per_group};
use super::view::Found;
use crate::backend::{BackendKind, refuses_disk, refuses_image};
use crate::expression;
use crate::plan::{Origin, ResourcesPlan};

/// Refuses by its name whatever `backend: fncall` does not offer.
pub(crate) fn check(
    doc: &StepDoc<'_>,
    origin: Option<Origin>,
    users: Users,
    resources: Option<&ResourcesPlan>,
    sink: &mut Sink,
) {
    let Some(backend) = doc.all.find("backend").filter(|found| found.node.text() == Some("fncall")) else {
        return;
    };
    let name = quoted(&doc.name);
    let mut refuse = |at: &Found<'_>, message: String, expected: &str| {
        let fault = Diagnostic::error(Code::BadRelation, at.key_span, &at.path, message);
        sink.push(fault.expected(format!("{expected}, or `backend: container`")));
    };
    if matches!(origin, Some(Origin::Live(_) | Origin::Checkpoint(_))) {
        let at = doc.own.find("from");
        let message = format!("{name} works from another workspace, and a `fncall` sandbox is new");
        refuse(at.as_ref().unwrap_or(&backend), message, "`from: image`, with what it needs as `inputs`");
    }
    if users.live || users.restored {
        let message = format!("another step works from {name}, and a `fncall` sandbox is used once");
        refuse(&backend, message, "no step that works from it");
    }
    if per_group(doc) {
        let message = format!("{name} is saved for its group, and a `fncall` sandbox is never saved");
        refuse(&backend, message, "no `per: group`");
    }
    if let Some(found) = doc.all.find("layers").filter(|found| !found.node.items().is_empty()) {
        refuse(&found, format!("{name} has layers, and a `fncall` sandbox has none"), "no `layers`");
    }
    let checkpoint = doc.all.object("checkpoint");
    for key in ["after", "every", "key"] {
        if let Some(found) = checkpoint.find(key).filter(|found| found.node.text() != Some("false")) {
            let message = format!("{name} is to be saved, and a `fncall` sandbox never is");
            refuse(&found, message, "no `checkpoint`");
        }
    }
    if let Some(found) = doc.all.object("idle").find("mode").filter(|f| f.node.text() == Some("checkpoint")) {
        let message = format!("{name} is to be saved when idle, and a `fncall` sandbox never is");
        refuse(&found, message, "`mode: freeze`");
    }
    let image = doc.all.find("image");
    let literal =
        |found: &Found<'_>| expression::parse(found.node.text()?).ok()?.as_literal().map(str::to_owned);
    if let Some((found, text)) = image.as_ref().and_then(|found| Some((found, literal(found)?)))
        && let Some(problem) = refuses_image(BackendKind::Fncall, &text)
    {
        refuse(found, format!("image {}: {problem}", quoted(&text)), "`host`, or a `dir:` image");
    }
    if let Some(ResourcesPlan::Fixed(resources)) = resources
        && let Some(problem) = refuses_disk(BackendKind::Fncall, resources.limit.disk)
    {
        let at = disk(doc);
        let message = format!("a limit of disk of {}: {problem}", resources.limit.disk);
        refuse(at.as_ref().unwrap_or(&backend), message, "no `disk`");
    }
}

/// Where the limit of disk is written, if it is.
fn disk<'t>(doc: &StepDoc<'t>) -> Option<Found<'t>> {
    let resources = doc.all.object("resources");
    resources.object("limit").find("disk").or_else(|| resources.find("disk"))
}
