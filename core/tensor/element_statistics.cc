// Statistics in one pass: mean and variance are combined from blocks (Chan, Golub, LeVeque 1979).

#include "core/tensor/element_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "core/tensor/internal/element.h"

namespace cairn::core {
namespace {

// The numbers that elements count as.

template <typename T>
constexpr bool kIsComplex = false;
template <typename T>
constexpr bool kIsComplex<std::complex<T>> = true;

/// Returns the magnitude. std::abs would return infinity for (inf, nan), which hides the NaN.
template <typename T>
T Magnitude(std::complex<T> value) {
  if (std::isnan(value.real()) || std::isnan(value.imag())) {
    return std::numeric_limits<T>::quiet_NaN();
  }
  return std::hypot(value.real(), value.imag());
}

/// Converts elements to numbers. `Number` is an integer, bool, float or double.
template <typename Element>
struct ElementNumbers {
  static auto NumberOf(typename Element::Value value) {
    if constexpr (kIsComplex<typename Element::Value>) {
      return Magnitude(value);
    } else {
      return value;
    }
  }
  using Number = decltype(NumberOf(typename Element::Value{}));
  static constexpr size_t kBytes = Element::kBytes;
  static constexpr size_t kPerElement = 1;
  static void Load(const std::byte* bytes, Number* numbers) {
    *numbers = NumberOf(Element::Load(bytes));
  }
};
template <>
struct ElementNumbers<internal::Float4PairElement> {
  using Number = float;
  static constexpr size_t kBytes = 1;
  static constexpr size_t kPerElement = 2;
  static void Load(const std::byte* bytes, Number* numbers) {
    const auto pair = static_cast<uint8_t>(*bytes);
    numbers[0] = internal::Float4E2M1FNToFloat(pair & 0xf);
    numbers[1] = internal::Float4E2M1FNToFloat(pair >> 4);
  }
};

/// The most numbers that ForEachBlock passes at once.
constexpr size_t kNumbersPerBlock = 4096;

/// Calls `visit` with a std::span of at most kNumbersPerBlock numbers after another. Requires that
/// `bytes` are complete elements.
template <typename Element, typename Visit>
void ForEachBlock(std::span<const std::byte> bytes, const Visit& visit) {
  using Numbers = ElementNumbers<Element>;
  // An array, because std::vector<bool> is not a span of bool.
  typename Numbers::Number block[kNumbersPerBlock];
  while (!bytes.empty()) {
    const size_t count =
        std::min(kNumbersPerBlock / Numbers::kPerElement, bytes.size() / Numbers::kBytes);
    if (count == 0) return;
    for (size_t i = 0; i < count; ++i) {
      Numbers::Load(bytes.data() + i * Numbers::kBytes, block + i * Numbers::kPerElement);
    }
    visit(std::span<const typename Numbers::Number>(block, count * Numbers::kPerElement));
    bytes = bytes.subspan(count * Numbers::kBytes);
  }
}

std::string TextOf(bool value) { return value ? "True" : "False"; }
template <typename T>
std::string TextOf(T value) {
  return value != value ? "nan" : fmt::format("{}", value);  // whatever its sign is
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

template <typename Element>
class ElementStatistics final : public StatisticsAccumulator::Impl {
 public:
  void Add(std::span<const std::byte> bytes) override {
    ForEachBlock<Element>(bytes, [this](std::span<const Number> numbers) { AddBlock(numbers); });
  }

  Statistics Finish() const override {
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
  using Number = typename ElementNumbers<Element>::Number;

  void AddBlock(std::span<const Number> numbers) {
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

namespace {

bool HasIntegers(DType dtype) {
  bool is_integral = false;
  internal::VisitDType(dtype, [&]<typename Element>(Element) {
    is_integral = std::is_integral_v<typename ElementNumbers<Element>::Number>;
  });
  return is_integral;
}

}  // namespace

HistogramAccumulator::HistogramAccumulator(DType dtype, double low, double high, size_t max_bins)
    : dtype_(dtype) {
  CAIRN_CHECK(std::isfinite(low) && std::isfinite(high) && low <= high && max_bins > 0);
  histogram_.low = low;
  const auto most = static_cast<double>(max_bins);
  if (low == high) {
    histogram_.counts.resize(1);
  } else if (HasIntegers(dtype)) {
    histogram_.width = std::max(1.0, std::ceil((high - low + 1) / most));
    histogram_.counts.resize(
        std::min(max_bins, static_cast<size_t>((high - low) / histogram_.width) + 1));
  } else {
    histogram_.width = high / most - low / most;  // the difference may be larger than any double
    histogram_.counts.resize(max_bins);
    // Denormal values that are close to each other may have no number between them.
    if (!(histogram_.width > 0)) histogram_.counts.resize(1);
  }
}

void HistogramAccumulator::Add(std::span<const std::byte> bytes) {
  const double last = static_cast<double>(histogram_.counts.size() - 1);
  const double low = histogram_.low, width = histogram_.width;
  const auto bin_of = [&](double value) -> size_t {
    if (!(width > 0)) return 0;
    const double distance = value - low;  // may be larger than any double
    const double at = std::isfinite(distance) ? distance / width : value / width - low / width;
    return static_cast<size_t>(std::clamp(std::floor(at), 0.0, last));
  };
  internal::VisitDType(dtype_, [&]<typename Element>(Element) {
    ForEachBlock<Element>(bytes, [&](auto numbers) {
      for (const auto number : numbers) {
        const auto value = static_cast<double>(number);
        if (std::isfinite(value)) ++histogram_.counts[bin_of(value)];
      }
    });
  });
}

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
    } else if constexpr (kIsComplex<typename Element::Value>) {
      const auto element = Element::Load(bytes.data());
      value = std::complex<double>(element.real(), element.imag());
    } else {
      value = std::complex<double>(static_cast<double>(Element::Load(bytes.data())), 0);
    }
  });
  return value;
}

}  // namespace cairn::core
