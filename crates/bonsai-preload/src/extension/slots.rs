//! There are no slots here.

pub(crate) use crate::facts::*;
