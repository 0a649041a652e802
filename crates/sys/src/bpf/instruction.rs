//! Instructions of eBPF (Documentation/bpf/standardization/instruction-set.rst), those that we have,
//! and a program whose jumps go to labels.

/// A register; [`Register::R10`] is the end of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named by their numbers")]
#[repr(u8)]
pub enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
}

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// What is done.
    pub code: u8,
    /// Source in the upper four bits, destination in the lower.
    pub registers: u8,
    /// Of a jump, in instructions; of memory, in bytes.
    pub offset: i16,
    /// A constant.
    pub immediate: i32,
}

/// Where jumps go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Instructions with jumps that have still to find their labels.
#[derive(Debug, Default)]
pub struct Assembly {
    instructions: Vec<Instruction>,
    /// By label.
    places: Vec<Option<usize>>,
    /// (instruction, label)
    jumps: Vec<(usize, Label)>,
}

/// `BPF_PSEUDO_MAP_FD` as the source of a 64-bit load.
const MAP_DESCRIPTOR: u8 = 1;
/// `BPF_PSEUDO_MAP_VALUE`, likewise.
const MAP_VALUE: u8 = 2;
/// `BPF_PSEUDO_KFUNC_CALL` as the source of a call.
const KERNEL_FUNCTION: u8 = 2;

impl Assembly {
    fn push(&mut self, code: u8, to: Register, from: u8, offset: i16, immediate: i32) {
        let registers = from << 4 | to as u8;
        self.instructions.push(Instruction { code, registers, offset, immediate });
    }

    /// A label, to be put somewhere.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Puts it here.
    pub fn put(&mut self, label: Label) {
        self.places[label.0] = Some(self.instructions.len());
    }

    /// `to = from`, 64 bits.
    pub fn copy(&mut self, to: Register, from: Register) {
        self.push(0xbf, to, from as u8, 0, 0);
    }

    /// `to = value`, 64 bits.
    pub fn set(&mut self, to: Register, value: i32) {
        self.push(0xb7, to, 0, 0, value);
    }

    /// `to += value`, 64 bits.
    pub fn add(&mut self, to: Register, value: i32) {
        self.push(0x07, to, 0, 0, value);
    }

    /// `to &= mask`, 32 bits; the upper ones are 0 then.
    pub fn and_32(&mut self, to: Register, mask: i32) {
        self.push(0x54, to, 0, 0, mask);
    }

    /// `to |= bits`, 64 bits.
    pub fn or(&mut self, to: Register, bits: i32) {
        self.push(0x47, to, 0, 0, bits);
    }

    /// `to >>= bits`, 64 bits, without sign.
    pub fn shift_right(&mut self, to: Register, bits: i32) {
        self.push(0x77, to, 0, 0, bits);
    }

    /// `to` is a number of so many bits in network order; it is in this machine's after this.
    pub fn from_network(&mut self, to: Register, bits: i32) {
        self.push(0xdc, to, 0, 0, bits);
    }

    /// `to += from`, 64 bits.
    pub fn add_register(&mut self, to: Register, from: Register) {
        self.push(0x0f, to, from as u8, 0, 0);
    }

    /// `to = *(u8 *)(from + offset)`.
    pub fn load_8(&mut self, to: Register, from: Register, offset: i16) {
        self.push(0x71, to, from as u8, offset, 0);
    }

    /// `to = *(u32 *)(from + offset)`.
    pub fn load_32(&mut self, to: Register, from: Register, offset: i16) {
        self.push(0x61, to, from as u8, offset, 0);
    }

    /// `*(u32 *)(to + offset) = from`.
    pub fn store_32(&mut self, to: Register, offset: i16, from: Register) {
        self.push(0x63, to, from as u8, offset, 0);
    }

    /// `to = *(u16 *)(from + offset)`.
    pub fn load_16(&mut self, to: Register, from: Register, offset: i16) {
        self.push(0x69, to, from as u8, offset, 0);
    }

    /// `to = *(u64 *)(from + offset)`.
    pub fn load(&mut self, to: Register, from: Register, offset: i16) {
        self.push(0x79, to, from as u8, offset, 0);
    }

    /// `*(u64 *)(to + offset) = from`.
    pub fn store(&mut self, to: Register, offset: i16, from: Register) {
        self.push(0x7b, to, from as u8, offset, 0);
    }

    /// `*(u64 *)(to + offset) += from`, atomically.
    pub fn atomic_add(&mut self, to: Register, offset: i16, from: Register) {
        self.push(0xdb, to, from as u8, offset, 0);
    }

    /// `to` is the map of this descriptor.
    pub fn map(&mut self, to: Register, descriptor: i32) {
        self.push(0x18, to, MAP_DESCRIPTOR, 0, descriptor);
        self.push(0, Register::R0, 0, 0, 0);
    }

    /// `to` is the address of the only value of an array of one, so many bytes into it. No call is
    /// needed to read and write there.
    pub fn map_value(&mut self, to: Register, descriptor: i32, bytes: i32) {
        self.push(0x18, to, MAP_VALUE, 0, descriptor);
        self.push(0, Register::R0, 0, 0, bytes);
    }

    /// Calls a function of the kernel's by its number in BTF; R0 is its result, R1 to R5 are lost.
    pub fn call_kernel(&mut self, function: i32) {
        self.push(0x85, Register::R0, KERNEL_FUNCTION, 0, function);
    }

    /// Calls a helper of the kernel; R0 is its result, R1 to R5 are lost.
    pub fn call(&mut self, helper: i32) {
        self.push(0x85, Register::R0, 0, 0, helper);
    }

    /// Goes there if the lower 32 bits are this.
    pub fn if_equal_32(&mut self, register: Register, value: i32, label: Label) {
        self.jump(0x16, register, value, label);
    }

    /// Goes there unless the lower 32 bits are this.
    pub fn unless_equal_32(&mut self, register: Register, value: i32, label: Label) {
        self.jump(0x56, register, value, label);
    }

    /// Goes there if all 64 bits are this.
    pub fn if_equal(&mut self, register: Register, value: i32, label: Label) {
        self.jump(0x15, register, value, label);
    }

    /// Goes there.
    pub fn go(&mut self, label: Label) {
        self.jump(0x05, Register::R0, 0, label);
    }

    /// Goes there unless all 64 bits are this.
    pub fn unless_equal(&mut self, register: Register, value: i32, label: Label) {
        self.jump(0x55, register, value, label);
    }

    /// Goes there if the first is more than the other, without signs.
    pub fn if_above_register(&mut self, register: Register, other: Register, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(0x2d, register, other as u8, 0, 0);
    }

    /// Goes there unless both are the same.
    pub fn unless_same(&mut self, register: Register, other: Register, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(0x5d, register, other as u8, 0, 0);
    }

    /// Goes there if it is more, without signs.
    pub fn if_above(&mut self, register: Register, value: i32, label: Label) {
        self.jump(0x25, register, value, label);
    }

    /// Goes there if it is less, without signs.
    pub fn if_less(&mut self, register: Register, value: i32, label: Label) {
        self.jump(0xa5, register, value, label);
    }

    /// Returns R0.
    pub fn exit(&mut self) {
        self.push(0x95, Register::R0, 0, 0, 0);
    }

    fn jump(&mut self, code: u8, register: Register, value: i32, label: Label) {
        self.jumps.push((self.instructions.len(), label));
        self.push(code, register, 0, 0, value);
    }

    /// The instructions; `None` if a label was put nowhere, or is too far away.
    pub fn finish(mut self) -> Option<Vec<Instruction>> {
        for (at, label) in &self.jumps {
            let to = i64::try_from(self.places[label.0]?).ok()?;
            let next = i64::try_from(*at).ok()? + 1;
            self.instructions[*at].offset = i16::try_from(to - next).ok()?;
        }
        Some(self.instructions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_find_their_labels_before_and_after_them() {
        let mut assembly = Assembly::default();
        let (again, out) = (assembly.label(), assembly.label());
        assembly.set(Register::R0, 0);
        assembly.put(again);
        assembly.if_equal(Register::R0, 7, out);
        assembly.add(Register::R0, 1);
        assembly.if_less(Register::R0, 9, again);
        assembly.put(out);
        assembly.exit();
        let program = assembly.finish().unwrap();
        let offsets: Vec<i16> = program.iter().map(|instruction| instruction.offset).collect();
        assert_eq!(offsets, [0, 2, 0, -3, 0]);
    }

    #[test]
    fn registers_share_a_byte() {
        let mut assembly = Assembly::default();
        assembly.store(Register::R10, -8, Register::R7);
        let [store] = assembly.finish().unwrap()[..] else { panic!() };
        assert_eq!(store, Instruction { code: 0x7b, registers: 0x7a, offset: -8, immediate: 0 });
    }

    #[test]
    fn a_label_that_is_nowhere_is_no_program() {
        let mut assembly = Assembly::default();
        let nowhere = assembly.label();
        assembly.if_equal(Register::R0, 0, nowhere);
        assert_eq!(assembly.finish(), None);
    }
}
