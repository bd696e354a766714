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
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"
#include "core/tensor/tensor.h"
#include "kv/base/error.h"
#include "kv/io/worker_pool.h"
#include "kv/store.h"
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

/// Boxes of tensors whose mean over several steps is computed together. Reads the boxes of one step
/// after the other, in the order of the steps, and adds their numbers.
/// Threads: one at a time. Memory: 5 * kMaxBytes, and a load of kMaxBytes.
class MeanWindow {
 public:
  static constexpr uint64_t kMaxBytes = 4 << 20;  // a chunk of the default length

  /// Everything must outlive the window. Progress counts the bytes of each step.
  MeanWindow(const kv::Store& store, std::span<const StepView> views,
             std::span<const double> weights, kv::WorkerPool& pool, ProgressMeter& progress);

  /// Returns whether a box with this many bytes can be added.
  bool HasRoom(uint64_t bytes) const;
  /// Adds a box of a tensor. Requires HasRoom, and a kind that is computed.
  void Add(const std::string& fqn, DType dtype, MeanKind kind, Box box);
  /// Computes the means of all boxes. Returns the errors of a load.
  Result<void> Compute();
  /// The mean of the i-th box that was added. Requires Compute.
  std::span<const std::byte> bytes(size_t i) const;
  void Clear();

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  static constexpr size_t kMaxBoxes = 4096;
  struct Part {
    std::string fqn;
    DType dtype = DType::kUnknown;
    MeanKind kind = MeanKind::kNone;
    Box box;
    uint64_t begin_bytes = 0;  // in the buffers
    uint64_t length_bytes = 0;
  };
  /// A range of one part, so that threads have equal shares.
  struct Slice {
    MeanKind kind = MeanKind::kNone;
    uint64_t begin_bytes = 0;
    uint64_t length_bytes = 0;
  };

  /// Reads the boxes of a step to the buffer at `target`.
  Result<void> Read(const StepView& view, std::byte* target);
  void AddStep(size_t step);

  const kv::Store& store_;
  const std::span<const StepView> views_;
  const std::span<const double> weights_;
  kv::WorkerPool& pool_;
  ProgressMeter& progress_;
  // Each has kMaxBytes, except that sums of numbers of two bytes take twice as many.
  const std::unique_ptr<std::byte[]> first_;  // the first step; then the means
  const std::unique_ptr<std::byte[]> next_;   // another step
  const std::unique_ptr<std::byte[]> different_;
  const std::unique_ptr<std::byte[]> sums_;
  std::vector<Part> parts_;
  std::vector<Slice> slices_;
  uint64_t used_bytes_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace cairn::core::internal
