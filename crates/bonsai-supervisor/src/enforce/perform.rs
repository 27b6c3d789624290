//! Calls that the supervisor makes in the program's place.

use std::sync::Arc;

use bonsai_calls::CallId;

use super::filter::Refused;
use super::listener::Asked;
use super::serve::Enforcer;

#[derive(Debug, Default)]
pub(crate) struct Performers {}

impl Performers {
    pub(crate) fn take(&self, own: &Arc<Enforcer>, asked: Asked, _first: CallId) {
        own.listener.end_with(asked.id, -1);
        own.count_refused(Refused::ControlData);
    }
}
