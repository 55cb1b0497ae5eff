//! The sockets of the program by their numbers.
//!
//! A number is a place and how often the place was taken: so a number that somebody still has finds nothing once its file is gone.

use super::file::File;
use super::known::FILES_END;
use std::ops::Index;

/// Bits of a place: as many as there are descriptors that can be served.
const PLACE_BITS: u32 = 16;
const PLACES_MAX: usize = 1 << PLACE_BITS;
/// Numbers are below [`FILES_END`], and not 0.
const TURNS_END: u32 = FILES_END >> PLACE_BITS;

#[derive(Debug)]
struct Place {
    /// Of the file that is here, or was.
    number: u32,
    file: Option<File>,
}

/// All files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Files {
    pub const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    #[inline]
    fn place(&self, number: u32) -> Option<&Place> {
        let place = self.places.get(number as usize % PLACES_MAX)?;
        (place.number == number).then_some(place)
    }

    #[inline]
    pub fn get(&self, number: &u32) -> Option<&File> {
        self.place(*number)?.file.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, number: &u32) -> Option<&mut File> {
        let place = self.places.get_mut(*number as usize % PLACES_MAX)?;
        place.file.as_mut().filter(|_| place.number == *number)
    }

    #[inline]
    pub fn contains_key(&self, number: &u32) -> bool {
        self.get(number).is_some()
    }

    /// Puts a file into a free place. None if there are too many.
    pub fn add(&mut self, file: File) -> Option<u32> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() == PLACES_MAX => return None,
            None => {
                self.places.push(Place {
                    number: self.places.len() as u32,
                    file: None,
                });
                self.places.len() as u32 - 1
            }
        };
        let it = &mut self.places[place as usize];
        // The first turn is 1, so no number is 0.
        let turn = (it.number >> PLACE_BITS) % (TURNS_END - 1) + 1;
        it.number = turn << PLACE_BITS | place;
        it.file = Some(file);
        Some(it.number)
    }

    /// Takes a file out.
    pub fn remove(&mut self, number: &u32) -> Option<File> {
        let place = *number as usize % PLACES_MAX;
        let it = self.places.get_mut(place).filter(|it| it.number == *number)?;
        let file = it.file.take()?;
        self.free.push(place as u32);
        Some(file)
    }

    /// Takes out those that `keeps` does not want, which may change the others.
    pub fn retain(&mut self, mut keeps: impl FnMut(u32, &mut File) -> bool) {
        for (index, place) in self.places.iter_mut().enumerate() {
            let Some(file) = &mut place.file else {
                continue;
            };
            if !keeps(place.number, file) {
                place.file = None;
                self.free.push(index as u32);
            }
        }
    }

    /// All, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &File)> {
        let places = self.places.iter();
        places.filter_map(|place| Some((place.number, place.file.as_ref()?)))
    }

    /// All, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut File)> {
        let places = self.places.iter_mut();
        places.filter_map(|place| Some((place.number, place.file.as_mut()?)))
    }
}

impl Index<&u32> for Files {
    type Output = File;

    #[inline]
    fn index(&self, number: &u32) -> &File {
        self.get(number).expect("it was looked up")
    }
}

#[cfg(test)]
mod tests {
    use super::super::address::Family;
    use super::*;

    #[test]
    fn a_number_finds_its_own_file_and_no_later_one_in_the_same_place() {
        let mut files = Files::new();
        let mut numbers = Vec::new();
        for round in 0..3 * TURNS_END {
            let number = files
                .add(File::new(Family::V4, round % 2 == 0))
                .expect("there is room");
            assert!(number != 0 && number < FILES_END);
            assert_eq!(files[&number].is_nonblocking, round % 2 == 0);
            if round == 0 {
                // It stays, and the others share a place.
                numbers.push(number);
                continue;
            }
            assert!(files.remove(&number).is_some());
            assert!(files.remove(&number).is_none() && files.get_mut(&number).is_none());
        }
        assert_eq!(
            files.iter().map(|(number, _)| number).collect::<Vec<_>>(),
            numbers
        );
    }
}
