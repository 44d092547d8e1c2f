//! Models, secrets and budget: checked in full, though this build serves none of them.

use super::diagnostic::{Diagnostic, DiagnosticCode as Code, Sink, listed, quoted};
use super::steps::StepDoc;
use super::tables::{ENV_MAX, MODELS_MAX};
use super::tree::{Node, child_path, item_path};
use super::view::View;

#[derive(Debug, Default)]
pub(crate) struct Models {
    pub names: Vec<String>,
    /// Those whose token ids are recorded.
    pub trained: Vec<String>,
    secrets: Vec<String>,
}

pub(crate) fn check(job: &View<'_>, sink: &mut Sink) -> Models {
    let secrets = job.find("secrets").map(|found| found.node.entries()).unwrap_or_default();
    let mut models =
        Models { secrets: secrets.iter().map(|entry| entry.key.clone()).collect(), ..Models::default() };
    let priced = job.object("budget").and_then(|budget| budget.find("usd"));
    for (entry, view) in job.map_of_objects("models") {
        models.names.push(entry.key.clone());
        match (view.find("endpoint"), view.find("endpoints")) {
            (Some(_), Some(found)) => {
                let fault = Diagnostic::error(
                    Code::BadRelation,
                    found.key_span,
                    &found.path,
                    "`endpoints` beside `endpoint`",
                );
                sink.push(fault.expected("one of them"));
            }
            (None, None) => {
                let message = format!("the model {} has no endpoint", quoted(&entry.key));
                let path = child_path(&view.path, "endpoint");
                let fault = Diagnostic::error(Code::MissingField, entry.key_span, &path, message);
                sink.push(fault.expected("`endpoint` or `endpoints`"));
            }
            _ => {}
        }
        if view.text("train") != Some("false") {
            if let Some(first) = models.trained.first() {
                let message =
                    format!("a second trained model, beside {}, is not available yet", quoted(first));
                let fault = Diagnostic::error(Code::NotAvailableYet, entry.key_span, &view.path, message);
                sink.push(fault.expected("`train: false` on all but one"));
            }
            models.trained.push(entry.key.clone());
        }
        if let Some(key) = view.object("api_key") {
            check_secret(&key, &models.secrets, sink);
        }
        if let Some(budget) = priced.as_ref().filter(|_| !view.has("price")) {
            let message =
                format!("`budget.usd` needs a price, and the model {} has none", quoted(&entry.key));
            let fault = Diagnostic::error(Code::BadRelation, budget.key_span, &budget.path, message);
            sink.push(fault.expected("`price` on every model"));
        }
    }
    models
}

/// The models and secrets that steps name must be declared.
pub(crate) fn check_uses(job: &View<'_>, steps: &[StepDoc<'_>], models: &Models, sink: &mut Sink) {
    let defaults = job.object("defaults");
    for view in steps.iter().map(|step| &step.own).chain(&defaults) {
        if let Some(found) = view.find("models") {
            // A list over its limit has been refused as a whole.
            for (index, item) in found.node.items().iter().enumerate().take(MODELS_MAX) {
                check_model(item, &item_path(&found.path, index), models, sink);
            }
        }
        let env = view.find("env");
        for entry in env.iter().flat_map(|found| found.node.entries().iter().take(ENV_MAX)) {
            let path = child_path(&child_path(&view.path, "env"), &entry.key);
            let Some(secret) = entry.value.entry("secret") else { continue };
            let message = format!("a secret in {} is not available yet", quoted(&path));
            let fault = Diagnostic::error(Code::NotAvailableYet, entry.value.span, &path, message);
            sink.push(fault.expected("text; a secret's value must not be written here"));
            if let Some(name) = secret.value.text() {
                report_unknown_secret(
                    name,
                    &secret.value,
                    &child_path(&path, "secret"),
                    &models.secrets,
                    sink,
                );
            }
        }
    }
}

fn check_model(item: &Node, path: &str, models: &Models, sink: &mut Sink) {
    let Some(name) = item.text().filter(|name| !models.names.iter().any(|known| known == name)) else {
        return;
    };
    let known = || models.names.iter().map(String::as_str);
    let message = format!("there is no model {}", quoted(name));
    let fault = Diagnostic::error(Code::UnknownModel, item.span, path, message);
    sink.push(
        fault.expected(format!("one of the job's `models`: {}", listed(known()))).nearest(name, known()),
    );
}

fn check_secret(view: &View<'_>, secrets: &[String], sink: &mut Sink) {
    if let Some(found) = view.find("secret")
        && let Some(name) = found.node.text()
    {
        report_unknown_secret(name, found.node, &found.path, secrets, sink);
    }
}

fn report_unknown_secret(name: &str, node: &Node, path: &str, secrets: &[String], sink: &mut Sink) {
    if secrets.iter().any(|known| known == name) {
        return;
    }
    let known = || secrets.iter().map(String::as_str);
    let message = format!("there is no secret {}", quoted(name));
    let fault = Diagnostic::error(Code::UnknownSecret, node.span, path, message);
    sink.push(
        fault.expected(format!("one of the job's `secrets`: {}", listed(known()))).nearest(name, known()),
    );
}
