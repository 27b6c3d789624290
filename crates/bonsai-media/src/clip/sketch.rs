//! Small MP4 files, made up box by box for tests.

/// A file with pictures and sound, and the body of its movie.
pub(crate) struct Sketch {
    pub(crate) file: Vec<u8>,
    pub(crate) movie: Vec<u8>,
}

/// How many pictures it has, how many a second, and which of them decoding can begin with: each tenth.
pub(crate) const PICTURES: u32 = 50;
pub(crate) const PER_SEC: u32 = 25;
pub(crate) const KEYS: u32 = 10;

/// Frames of sound, of 1024 ticks, and their rate.
pub(crate) const FRAMES: u32 = 94;
pub(crate) const RATE: u32 = 48_000;

/// Bytes of a frame of sound.
pub(crate) const FRAME: u32 = 200;

pub(crate) fn boxed(kind: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(body.len() + 8).expect("small");
    [&size.to_be_bytes()[..], kind, body].concat()
}

/// A box with version 0, no flags, and numbers of four bytes.
fn numbers(kind: &[u8; 4], numbers: &[u32]) -> Vec<u8> {
    let bytes: Vec<u8> = numbers
        .iter()
        .flat_map(|number| number.to_be_bytes())
        .collect();
    boxed(kind, &[&[0; 4][..], &bytes].concat())
}

fn header(kind: &[u8; 4], timescale: u32, duration: u32, more: usize) -> Vec<u8> {
    let mut body = vec![0; 4];
    for number in [0, 0, timescale, duration] {
        body.extend_from_slice(&number.to_be_bytes());
    }
    body.resize(body.len() + more, 0);
    boxed(kind, &body)
}

/// How the pictures of a sketch are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// How many there are, and which of them decoding can begin with: the first of so many.
    pub(crate) pictures: u32,
    pub(crate) keys: u32,
    /// Ticks of one; there are 25 a second.
    pub(crate) ticks: u32,
    pub(crate) order: Order,
    /// Bytes of one that decoding can begin with, and of others.
    pub(crate) bytes: (usize, usize),
}

/// In which order pictures are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Each two places before it is shown, and those of odd number one place.
    Early,
    /// As they are shown.
    Shown,
    /// Each other one behind the one that is shown after it, and predicted from that, too.
    Pairs,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            pictures: PICTURES,
            keys: KEYS,
            ticks: 512,
            order: Order::Early,
            bytes: (4000, 900),
        }
    }
}

impl Shape {
    /// Places from where a picture is decoded to where it is shown, by its number.
    fn after(&self, number: u32) -> u32 {
        let place = number % self.keys;
        let is_last = place + 1 == self.keys || number + 1 == self.pictures;
        match self.order {
            Order::Early => 2 - number % 2,
            Order::Shown => 0,
            Order::Pairs if place == 0 || place % 2 == 1 && is_last => 1,
            Order::Pairs => place % 2 * 2,
        }
    }

    /// Whether nothing is predicted from a picture.
    fn is_disposable(&self, number: u32) -> bool {
        match self.order {
            Order::Early => !number.is_multiple_of(2),
            Order::Shown => false,
            Order::Pairs => self.after(number) == 0,
        }
    }

    /// How many places the file's times are before those of the clip.
    const fn edit(&self) -> u32 {
        match self.order {
            Order::Early => 2,
            Order::Shown => 0,
            Order::Pairs => 1,
        }
    }

    /// A picture: words about it, and a slice.
    fn picture(&self, number: u32) -> Vec<u8> {
        let first: u8 = match number {
            _ if number.is_multiple_of(self.keys) => 0x65,
            _ if self.is_disposable(number) => 0x01,
            _ => 0x41,
        };
        let (key, other) = self.bytes;
        let length = if first == 0x65 { key } else { other };
        let mut slice = vec![first];
        slice.resize(length, (number % 251) as u8);
        let length = u32::try_from(slice.len()).expect("small").to_be_bytes();
        [&[0, 0, 0, 3, 6, 5, 4][..], &length, &slice].concat()
    }
}

/// A picture: pictures of odd number are ones that nothing is predicted from.
pub(crate) fn picture(number: u32) -> Vec<u8> {
    Shape::default().picture(number)
}

fn pictures_description() -> Vec<u8> {
    let sets = [
        &[
            1, 0x42, 0xc0, 0x1e, 0xff, 0xe1, 0, 4, 0x67, 0x42, 0xc0, 0x1e,
        ][..],
        &[1, 0, 3, 0x68, 0xce, 0x3c],
    ];
    let entry = [&[0; 78][..], &boxed(b"avcC", &sets.concat())].concat();
    let entries = [&[0, 0, 0, 0, 0, 0, 0, 1][..], &boxed(b"avc1", &entry)].concat();
    boxed(b"stsd", &entries)
}

fn sound_description() -> Vec<u8> {
    let specific = [5, 2, 0x11, 0x90];
    let decoder = [
        &[0x40, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &specific,
    ]
    .concat();
    let decoder = [
        &[4, u8::try_from(decoder.len()).expect("small")][..],
        &decoder,
    ]
    .concat();
    let stream = [&[0, 1, 0][..], &decoder, &[6, 1, 2]].concat();
    let stream = [
        &[3, u8::try_from(stream.len()).expect("small")][..],
        &stream,
    ]
    .concat();
    let esds = boxed(b"esds", &[&[0; 4][..], &stream].concat());
    let entry = boxed(b"mp4a", &[&[0; 28][..], &esds].concat());
    boxed(b"stsd", &[&[0, 0, 0, 0, 0, 0, 0, 1][..], &entry].concat())
}

fn track(number: u32, timescale: u32, duration: u32, edit: u32, tables: &[Vec<u8>]) -> Vec<u8> {
    let edits = numbers(b"elst", &[1, duration, edit, 1 << 16]);
    let stbl = boxed(b"stbl", &tables.concat());
    let media = [
        header(b"mdhd", timescale, duration, 4),
        boxed(b"minf", &stbl),
    ];
    let inner = [
        numbers(b"tkhd", &[0, 0, number]),
        boxed(b"edts", &edits),
        boxed(b"mdia", &media.concat()),
    ];
    boxed(b"trak", &inner.concat())
}

impl Sketch {
    pub(crate) fn new() -> Self {
        Self::of(&Shape::default())
    }

    pub(crate) fn of(shape: &Shape) -> Self {
        let count = shape.pictures;
        let pictures: Vec<Vec<u8>> = (0..count).map(|at| shape.picture(at)).collect();
        let sizes: Vec<u32> = pictures
            .iter()
            .map(|picture| u32::try_from(picture.len()).expect("small"))
            .collect();
        let media: Vec<u8> = pictures.concat();
        let frames: Vec<u8> = (0..FRAMES * FRAME).map(|at| (at % 251) as u8).collect();
        let beginning = boxed(b"ftyp", b"isom\0\0\x02\0isomavc1");
        let data = boxed(b"mdat", &[&media[..], &frames].concat());
        let first = u32::try_from(beginning.len() + 8).expect("small");
        let sound = first + u32::try_from(media.len()).expect("small");
        let offsets: Vec<u32> = (0..count)
            .flat_map(|at| [1, shape.after(at) * shape.ticks])
            .collect();
        let keys: Vec<u32> = (0..count)
            .step_by(usize::try_from(shape.keys).expect("small"))
            .map(|at| at + 1)
            .collect();
        let length = |of: &[u32]| u32::try_from(of.len()).expect("small");
        let video = track(
            1,
            PER_SEC * shape.ticks,
            count * shape.ticks,
            shape.edit() * shape.ticks,
            &[
                pictures_description(),
                numbers(b"stts", &[1, count, shape.ticks]),
                numbers(b"ctts", &[&[count][..], &offsets].concat()),
                numbers(b"stss", &[&[length(&keys)][..], &keys].concat()),
                // Chunks of ten pictures.
                numbers(b"stsc", &[1, 1, 10, 1]),
                numbers(b"stsz", &[&[0, count][..], &sizes].concat()),
                {
                    let chunks = sizes.chunks(10).scan(first, |at, chunk| {
                        let here = *at;
                        *at += chunk.iter().sum::<u32>();
                        Some(here)
                    });
                    let chunks: Vec<u32> = chunks.collect();
                    numbers(b"stco", &[&[length(&chunks)][..], &chunks].concat())
                },
            ],
        );
        let audio = track(
            2,
            RATE,
            FRAMES * 1024,
            1024,
            &[
                sound_description(),
                numbers(b"stts", &[1, FRAMES, 1024]),
                numbers(b"stsc", &[1, 1, FRAMES, 1]),
                numbers(b"stsz", &[FRAME, FRAMES]),
                numbers(b"stco", &[1, sound]),
            ],
        );
        let movie = [header(b"mvhd", 1000, 2000, 80), video, audio].concat();
        let file = [beginning, data, boxed(b"moov", &movie)].concat();
        Self { file, movie }
    }
}
