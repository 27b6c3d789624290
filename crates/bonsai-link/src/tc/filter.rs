//! Filters: who is sent where.

use crate::error::Error;
use crate::netlink::message::{Message, attribute, text, u32_at};
use crate::netlink::{Dumped, NLM_F_ACK, NLM_F_REQUEST, Socket};

use super::{
    Handle, RTM_DELTFILTER, RTM_GETTFILTER, RTM_NEWTFILTER, TCA_KIND, TCA_OPTIONS, TCMSG, Write,
    tcmsg,
};

const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_ID: u16 = 11;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
/// Every protocol, in the order of the network.
const ETH_P_ALL: u16 = 3_u16.to_be();

/// The name of a program at its place: there is one.
const PROGRAM: u32 = 1;

/// Where a filter stands: `priority` is where in the line, 1 first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The device, by its index.
    pub(crate) device: u32,
    /// [`Handle::INCOMING`] or [`Handle::OUTGOING`].
    pub(crate) parent: Handle,
    /// Its turn.
    pub(crate) priority: u16,
}

impl Place {
    fn fixed(self, handle: u32) -> [u8; TCMSG] {
        let info = u32::from(self.priority) << 16 | u32::from(ETH_P_ALL);
        tcmsg(self.device, Handle(handle), self.parent, info)
    }
}

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Where it stands.
    pub(crate) place: Place,
    /// Its kind, such as `bpf`.
    pub(crate) kind: String,
    /// The name of its program, if it is one.
    pub(crate) name: Option<String>,
    /// The number of its program, if it is one.
    pub(crate) program: Option<u32>,
}

/// A program as a filter that decides itself. In a place that has one it is put in its stead,
/// without a packet in between that meets neither.
pub(crate) fn program(write: Write, place: Place, program: i32, name: &str) -> Message {
    let mut message = Message::new(RTM_NEWTFILTER, write.flags(), &place.fixed(PROGRAM));
    message.text(TCA_KIND, "bpf").nest(TCA_OPTIONS, |options| {
        options.u32(TCA_BPF_FD, program.cast_unsigned());
        options.text(TCA_BPF_NAME, name);
        options.u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
    });
    message
}

/// Takes a program away, and no filter of another kind that has its turn.
pub(crate) fn no_program(place: Place) -> Message {
    let flags = NLM_F_REQUEST | NLM_F_ACK;
    let mut message = Message::new(RTM_DELTFILTER, flags, &place.fixed(PROGRAM));
    message.text(TCA_KIND, "bpf");
    message
}

/// All filters that hang at a place of a device.
pub(crate) fn filters(
    socket: &mut Socket,
    device: u32,
    parent: Handle,
) -> Result<Vec<Filter>, Error> {
    let mut found = Vec::new();
    let fixed = tcmsg(device, Handle(0), parent, 0);
    let answer = socket.dump(
        &Message::dump(RTM_GETTFILTER, &fixed),
        |dumped| match dumped {
            Dumped::Again => found.clear(),
            Dumped::One(RTM_NEWTFILTER, bytes) => found.extend(filter(bytes)),
            Dumped::One(..) => {}
        },
    );
    match answer {
        // There is nothing there that filters could hang on.
        Err(Error::Refused(refused)) if refused.errno == libc::EINVAL => Ok(Vec::new()),
        answer => answer.map(|()| found),
    }
}

/// Reads a filter out of a message; `None` for what is only the head of several.
pub(crate) fn filter(bytes: &[u8]) -> Option<Filter> {
    let rest = bytes.get(TCMSG..)?;
    let options = attribute(rest, TCA_OPTIONS)?;
    Some(Filter {
        place: Place {
            device: u32_at(bytes, 4)?,
            parent: Handle(u32_at(bytes, 12)?),
            priority: Handle(u32_at(bytes, 16)?).major(),
        },
        kind: text(attribute(rest, TCA_KIND)?),
        name: attribute(options, TCA_BPF_NAME).map(text),
        program: attribute(options, TCA_BPF_ID).and_then(|value| u32_at(value, 0)),
    })
}
