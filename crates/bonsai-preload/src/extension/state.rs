//! What is known of the process.

pub(crate) use crate::own::Own;
