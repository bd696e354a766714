// Compiled without contraction of products and sums: a fused operation would round only once, and
// only on machines that have it.

#include "core/rewrite/internal/mean.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/load/internal/load.h"
#include "kv/base/div.h"

namespace cairn::core::internal {
namespace {

/// Whole numbers of one kind, and what has been computed of them. Borrows all memory, which needs
/// no alignment.
struct MeanRun {
  std::span<std::byte> first;      // the numbers of the first array; then the result
  std::span<std::byte> different;  // same length; not zero where arrays differ
  std::span<std::byte> sum;        // twice as long for numbers of two bytes
};

template <typename Number>
Number Load(const std::byte* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof(Number));
  return number;
}

template <typename Number>
void Store(std::byte* bytes, Number number) {
  std::memcpy(bytes, &number, sizeof(Number));
}

// The types below convert the stored bits of a number to the type of sums, and back.
struct BFloat16 {
  using Bits = uint16_t;
  using Sum = float;
  static float ToSum(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
  static uint16_t Round(float sum) {
    const auto bits = std::bit_cast<uint32_t>(sum);
    const auto rounded = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    return std::isnan(sum) ? uint16_t{0x7fc0} : rounded;
  }
};

struct Float16 {
  using Bits = uint16_t;
  using Sum = float;
  // Moves the exponent bits to their place in binary32; the product corrects the bias. This
  // includes subnormal numbers, which a product makes normal without an error.
  static float ToSum(uint16_t bits) {
    const float magnitude =
        std::bit_cast<float>(static_cast<uint32_t>(bits & 0x7fff) << 13) * 0x1p112f;
    const uint32_t special = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | special |
                                static_cast<uint32_t>(bits & 0x8000) << 16);
  }
  static uint16_t Round(float sum) {
    const auto bits = std::bit_cast<uint32_t>(sum);
    const uint32_t magnitude = bits & 0x7fffffff;
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000) return 0x7e00;                                 // NaN
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // infinity
    if (magnitude >= 0x38800000) {                                             // normal
      const uint32_t rebiased = magnitude - 0x38000000;
      return static_cast<uint16_t>(sign | ((rebiased + 0xfff + (rebiased >> 13 & 1)) >> 13));
    }
    // Adding 1/2 leaves the unit of subnormal numbers, 2^-24, as the last bit of the sum.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
};

template <typename Number, typename Word, Word kNan>
struct Stored {
  using Bits = Word;
  using Sum = Number;
  static Number ToSum(Word bits) { return std::bit_cast<Number>(bits); }
  static Word Round(Number sum) { return std::isnan(sum) ? kNan : std::bit_cast<Word>(sum); }
};
using Float32 = Stored<float, uint32_t, 0x7fc00000>;
using Float64 = Stored<double, uint64_t, 0x7ff8000000000000>;

template <typename Type>
void BeginMean(const MeanRun& run, double weight) {
  const auto factor = static_cast<typename Type::Sum>(weight);
  const size_t count = run.first.size() / sizeof(typename Type::Bits);
  for (size_t i = 0; i < count; ++i) {
    const auto bits = Load<typename Type::Bits>(&run.first[i * sizeof(typename Type::Bits)]);
    Store(&run.sum[i * sizeof(typename Type::Sum)], factor * Type::ToSum(bits));
  }
  std::memset(run.different.data(), 0, run.different.size());
}

template <typename Type>
void AddToMean(const MeanRun& run, double weight, std::span<const std::byte> numbers) {
  using Bits = typename Type::Bits;
  using Sum = typename Type::Sum;
  const auto factor = static_cast<Sum>(weight);
  const std::byte* const first = run.first.data();
  std::byte* const different = run.different.data();
  std::byte* const sums = run.sum.data();
  const size_t count = run.first.size() / sizeof(Bits);
  for (size_t i = 0; i < count; ++i) {
    const size_t at = i * sizeof(Bits);
    const auto bits = Load<Bits>(&numbers[at]);
    const Bits differs = Load<Bits>(different + at) | (bits ^ Load<Bits>(first + at));
    Store(different + at, differs);
    const Sum product = factor * Type::ToSum(bits);
    Store(sums + i * sizeof(Sum), Load<Sum>(sums + i * sizeof(Sum)) + product);
  }
}

template <typename Type>
void FinishMean(const MeanRun& run) {
  using Bits = typename Type::Bits;
  using Sum = typename Type::Sum;
  const size_t count = run.first.size() / sizeof(Bits);
  for (size_t i = 0; i < count; ++i) {
    const size_t at = i * sizeof(Bits);
    const Bits mean = Type::Round(Load<Sum>(&run.sum[i * sizeof(Sum)]));
    if (Load<Bits>(&run.different[at]) != 0) Store(&run.first[at], mean);
  }
}

// The default modes of this thread while it exists: a caller may have changed the rounding, or have
// subnormal numbers treated as zeros.
class DefaultModes {
 public:
  DefaultModes() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultModes() { std::fesetenv(&saved_); }
  DefaultModes(const DefaultModes&) = delete;
  DefaultModes& operator=(const DefaultModes&) = delete;

 private:
  std::fenv_t saved_;
};

// Calls `visit` with the type of a kind that is computed.
template <typename Visit>
void VisitKind(MeanKind kind, const Visit& visit) {
  const DefaultModes modes;
  if (kind == MeanKind::kFloat16) visit(Float16());
  if (kind == MeanKind::kBFloat16) visit(BFloat16());
  if (kind == MeanKind::kFloat32) visit(Float32());
  if (kind == MeanKind::kFloat64) visit(Float64());
}

constexpr uint64_t kSliceBytes = 256 << 10;
constexpr uint64_t kAlignBytes = 64;

std::unique_ptr<std::byte[]> Buffer(uint64_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

}  // namespace

MeanKind MeanKindOf(schema::DType dtype) {
  using schema::DType;
  switch (dtype) {
    case DType::kFloat16:
    case DType::kComplex32:
      return MeanKind::kFloat16;
    case DType::kBFloat16:
    case DType::kBComplex32:
      return MeanKind::kBFloat16;
    case DType::kFloat32:
    case DType::kComplex64:
      return MeanKind::kFloat32;
    case DType::kFloat64:
    case DType::kComplex128:
      return MeanKind::kFloat64;
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0FNU:
    case DType::kFloat4E2M1FNx2:
      return MeanKind::kUnsupported;
    default:
      return MeanKind::kNone;
  }
}

uint64_t NumberBytes(MeanKind kind) {
  switch (kind) {
    case MeanKind::kNone:
    case MeanKind::kUnsupported:
      return 0;
    case MeanKind::kFloat16:
    case MeanKind::kBFloat16:
      return 2;
    case MeanKind::kFloat32:
      return 4;
    case MeanKind::kFloat64:
      return 8;
  }
  return 0;
}

MeanWindow::MeanWindow(const kv::Store& store, std::span<const StepView> views,
                       std::span<const double> weights, kv::WorkerPool& pool,
                       ProgressMeter& progress)
    : store_(store),
      views_(views),
      weights_(weights),
      pool_(pool),
      progress_(progress),
      first_(Buffer(kMaxBytes)),
      next_(Buffer(kMaxBytes)),
      different_(Buffer(kMaxBytes)),
      sums_(Buffer(2 * kMaxBytes)) {}

bool MeanWindow::HasRoom(uint64_t bytes) const {
  return used_bytes_ + bytes <= kMaxBytes && parts_.size() < kMaxBoxes;
}

void MeanWindow::Add(const std::string& fqn, DType dtype, MeanKind kind, Box box) {
  const auto length = TensorBytes(dtype, box.sizes);
  CAIRN_CHECK(length && HasRoom(*length));
  for (uint64_t begin = 0; begin < *length; begin += kSliceBytes) {
    slices_.push_back({.kind = kind,
                       .begin_bytes = used_bytes_ + begin,
                       .length_bytes = std::min(kSliceBytes, *length - begin)});
  }
  parts_.push_back({.fqn = fqn,
                    .dtype = dtype,
                    .kind = kind,
                    .box = std::move(box),
                    .begin_bytes = used_bytes_,
                    .length_bytes = *length});
  used_bytes_ = std::min(RoundUp(used_bytes_ + *length, kAlignBytes), kMaxBytes);
}

Result<void> MeanWindow::Compute() {
  for (size_t step = 0; step < views_.size(); ++step) {
    CAIRN_TRY(Read(views_[step], step == 0 ? first_.get() : next_.get()));
    AddStep(step);
  }
  return {};
}

Result<void> MeanWindow::Read(const StepView& view, std::byte* target) {
  std::vector<LoadRequest> requests;
  uint64_t bytes = 0;
  for (const Part& part : parts_) {
    requests.push_back(RowMajorRequest(part.fqn, part.dtype, part.box, target + part.begin_bytes));
    bytes += part.length_bytes;
  }
  CAIRN_TRY_ASSIGN(const LoadReport report,
                   WithStep(store_, view.step, [&](const StepView& current) {
                     return RunLoad(current, requests, {});
                   }));
  bytes_read_ += report.bytes_read;
  return progress_.Add(bytes);
}

void MeanWindow::AddStep(size_t step) {
  const double weight = weights_[step];
  const bool is_last = step + 1 == views_.size();
  pool_.Run(slices_.size(), [&](size_t i, size_t) {
    const auto [kind, begin, length] = slices_[i];
    CAIRN_CHECK(NumberBytes(kind) > 0 && length % NumberBytes(kind) == 0);
    const uint64_t sum_bytes = NumberBytes(kind) == 2 ? 2 * length : length;
    const MeanRun run{.first = {first_.get() + begin, length},
                      .different = {different_.get() + begin, length},
                      .sum = {sums_.get() + 2 * begin, sum_bytes}};
    VisitKind(kind, [&](auto type) {
      using Type = decltype(type);
      if (step == 0) return BeginMean<Type>(run, weight);
      AddToMean<Type>(run, weight, {next_.get() + begin, length});
      if (is_last) FinishMean<Type>(run);
    });
  });
}

std::span<const std::byte> MeanWindow::bytes(size_t i) const {
  return {first_.get() + parts_[i].begin_bytes, parts_[i].length_bytes};
}

void MeanWindow::Clear() {
  parts_.clear();
  slices_.clear();
  used_bytes_ = 0;
}

}  // namespace cairn::core::internal
