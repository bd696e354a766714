// Statistics in one pass: mean and variance are combined from blocks (Chan, Golub, LeVeque 1979).

#include "core/tensor/element_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/tensor/internal/element.h"
#include "core/tensor/internal/element_numbers.h"

namespace cairn::core {

void ElementSummary::Add(const ElementSummary& other) {
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  zeros += other.zeros;
  nans += other.nans;
  infs += other.infs;
  if (other.finite == 0) return;
  // Not by sums, which might be infinite.
  const double all = static_cast<double>(finite + other.finite);
  mean = mean * (static_cast<double>(finite) / all) +
         other.mean * (static_cast<double>(other.finite) / all);
  finite += other.finite;
}

kv::ChunkStatistics ElementSummary::ToStatistics() const {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  return {.min = min > max ? kNone : min,
          .max = min > max ? kNone : max,
          .mean = finite == 0 ? kNone : mean,
          .zeros = zeros,
          .nans = nans,
          .infs = infs};
}

namespace {

std::string TextOf(bool value) { return value ? "True" : "False"; }
template <typename T>
std::string TextOf(T value) {
  return fmt::format("{}", value);
}
template <typename T>
std::string TextOf(std::complex<T> value) {
  return fmt::format("({}{:+}j)", value.real(), value.imag());
}

// Count, mean, and sum of squared differences from the mean.
struct Moments {
  double count = 0;
  double mean = 0;
  double m2 = 0;

  void Combine(const Moments& other) {
    if (other.count == 0) return;
    const double total = count + other.count;
    const double delta = other.mean - mean;
    m2 += other.m2 + delta * delta * count * other.count / total;
    mean += delta * other.count / total;
    count = total;
  }
};

}  // namespace

class StatisticsAccumulator::Impl {
 public:
  virtual ~Impl() = default;
  virtual void Add(std::span<const std::byte> bytes) = 0;
  virtual Statistics Finish() const = 0;
};

namespace {

// `Number` is an integer, bool, float or double; for complex elements their magnitude.
template <typename Number>
class NumberStatistics {
 public:
  // Adds at most kNumbersPerBlock numbers.
  void Add(std::span<const Number> numbers) {
    count_ += numbers.size();
    double sum = 0;
    uint64_t finite = 0;
    for (const Number number : numbers) {
      zeros_ += number == Number{};
      if constexpr (std::is_floating_point_v<Number>) {
        if (std::isnan(number)) {
          ++nans_;
          continue;
        }
        if (std::isinf(number)) {
          ++infs_;
          (number < 0 ? has_negative_inf_ : has_positive_inf_) = true;
          continue;
        }
      }
      Order(number);
      ++finite;
      sum += static_cast<double>(number);
    }
    if (finite == 0) return;
    Moments block{.count = static_cast<double>(finite), .mean = sum / static_cast<double>(finite)};
    for (const Number number : numbers) {
      if constexpr (std::is_floating_point_v<Number>) {
        if (!std::isfinite(number)) continue;
      }
      const double difference = static_cast<double>(number) - block.mean;
      block.m2 += difference * difference;
    }
    moments_.Combine(block);
  }

  Statistics Finish() const {
    Statistics statistics{.count = count_, .zeros = zeros_, .nans = nans_, .infs = infs_};
    if (moments_.count > 0) {
      statistics.finite_min = static_cast<double>(min_);
      statistics.finite_max = static_cast<double>(max_);
    }
    if (count_ > nans_) {
      const Number min = has_negative_inf_ ? Lowest() : min_;
      const Number max = has_positive_inf_ ? Highest() : max_;
      statistics.min = static_cast<double>(min);
      statistics.max = static_cast<double>(max);
      statistics.min_text = TextOf(min);
      statistics.max_text = TextOf(max);
    }
    if (moments_.count > 0) {
      statistics.mean = moments_.mean;
      statistics.std_deviation = std::sqrt(moments_.m2 / moments_.count);
    }
    return statistics;
  }

 private:
  void Order(Number number) {
    if (number < min_) min_ = number;
    if (number > max_) max_ = number;
  }

  static constexpr Number Highest() {
    if constexpr (std::is_floating_point_v<Number>) return std::numeric_limits<Number>::infinity();
    return std::numeric_limits<Number>::max();
  }
  static constexpr Number Lowest() {
    if constexpr (std::is_floating_point_v<Number>) return -std::numeric_limits<Number>::infinity();
    return std::numeric_limits<Number>::lowest();
  }

  uint64_t count_ = 0;
  uint64_t zeros_ = 0;
  uint64_t nans_ = 0;
  uint64_t infs_ = 0;
  bool has_negative_inf_ = false;
  bool has_positive_inf_ = false;
  Number min_ = Highest();  // smallest of the finite numbers
  Number max_ = Lowest();
  Moments moments_;
};

template <typename Element>
class ElementStatistics final : public StatisticsAccumulator::Impl {
 public:
  void Add(std::span<const std::byte> bytes) override {
    internal::ForEachBlock<Element>(bytes, [this](auto numbers) { numbers_.Add(numbers); });
  }
  Statistics Finish() const override { return numbers_.Finish(); }

 private:
  NumberStatistics<typename internal::ElementNumbers<Element>::Number> numbers_;
};

}  // namespace

StatisticsAccumulator::StatisticsAccumulator(DType dtype)
    : element_bytes_(schema::ElementBytes(dtype)) {
  internal::VisitDType(dtype, [this]<typename Element>(Element) {
    impl_ = std::make_unique<ElementStatistics<Element>>();
  });
}

StatisticsAccumulator::~StatisticsAccumulator() = default;
StatisticsAccumulator::StatisticsAccumulator(StatisticsAccumulator&&) noexcept = default;
StatisticsAccumulator& StatisticsAccumulator::operator=(StatisticsAccumulator&&) noexcept = default;

void StatisticsAccumulator::Add(std::span<const std::byte> bytes) {
  if (!impl_) return;
  CAIRN_CHECK(bytes.size() % element_bytes_ == 0);
  impl_->Add(bytes);
}

Statistics StatisticsAccumulator::Finish() const { return impl_ ? impl_->Finish() : Statistics{}; }

std::string FormatElement(DType dtype, std::span<const std::byte> bytes) {
  std::string text = "?";
  if (bytes.size() != schema::ElementBytes(dtype)) return text;
  internal::VisitDType(dtype, [&]<typename Element>(Element) {
    if constexpr (std::is_same_v<Element, internal::Float4PairElement>) {
      const auto pair = static_cast<uint8_t>(bytes[0]);
      text = fmt::format("[{}, {}]", internal::Float4E2M1FNToFloat(pair & 0xf),
                         internal::Float4E2M1FNToFloat(pair >> 4));
    } else {
      text = TextOf(Element::Load(bytes.data()));
    }
  });
  return text;
}

std::optional<std::complex<double>> ElementValue(DType dtype, std::span<const std::byte> bytes) {
  std::optional<std::complex<double>> value;
  if (bytes.size() != schema::ElementBytes(dtype)) return value;
  internal::VisitDType(dtype, [&]<typename Element>(Element) {
    if constexpr (std::is_same_v<Element, internal::Float4PairElement>) {
      return;
    } else if constexpr (internal::kIsComplex<typename Element::Value>) {
      const auto element = Element::Load(bytes.data());
      value = std::complex<double>(element.real(), element.imag());
    } else {
      value = std::complex<double>(static_cast<double>(Element::Load(bytes.data())), 0);
    }
  });
  return value;
}

}  // namespace cairn::core
