#pragma once
/// The arithmetic of weighted means of arrays of numbers, one array after the other.
///
/// The result does not depend on how arrays are divided, or on the machine: each number is computed
/// from the numbers at its place alone, as fl(...fl(fl(w0 * x0) + fl(w1 * x1))... + fl(wn * xn)),
/// where fl rounds to nearest, ties to even, in binary32, or in binary64 for numbers of 64 bits.
/// This is then rounded to the stored type in the same way. Every NaN that results is the positive
/// quiet NaN without payload. A number that is the same in all arrays, bit for bit, remains as it
/// is, whatever the weights are.

#include <cstddef>
#include <cstdint>
#include <span>

#include "schema/dtype.h"

namespace cairn::core::internal {

/// How the mean of the elements of a tensor is computed.
enum class MeanKind : uint8_t {
  kNone,         // not computed: the elements come from the last step
  kUnsupported,  // floats of 8 and 4 bits, in which a mean would lose most of its value
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
};

/// Complex numbers are pairs of floats. kNone for unknown dtypes as well.
MeanKind MeanKindOf(schema::DType dtype);
/// Length of a number; 0 for kNone and kUnsupported.
uint64_t NumberBytes(MeanKind kind);

/// Numbers of one kind, and what has been computed of them. Borrows all memory, which needs no
/// alignment.
struct MeanRun {
  MeanKind kind = MeanKind::kNone;
  std::span<std::byte> first;      // the numbers of the first array; then the result
  std::span<std::byte> different;  // same length; not zero where arrays differ
  std::span<std::byte> sum;        // has SumBytes(kind, first.size()) bytes
};
uint64_t SumBytes(MeanKind kind, uint64_t bytes);

// Requires a kind that is computed, and whole numbers. Threads: different runs at once.
/// Begins with the numbers in `run.first`.
void BeginMean(const MeanRun& run, double weight);
/// Adds the numbers of another array, which is as long as the first.
void AddToMean(const MeanRun& run, double weight, std::span<const std::byte> numbers);
/// Replaces `run.first` by the mean.
void FinishMean(const MeanRun& run);

}  // namespace cairn::core::internal
