#include "core/interop/safetensors/internal/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace cairn::core::internal {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";

std::unexpected<Error> Damaged(std::string message) {
  return Fail(ErrorCode::kDataLoss, std::move(message));
}

// A tensor as the header describes it, before any check.
struct RawTensor {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> data_offsets;
};

// Follows the parser's events through the only structure that a header may have, and keeps only
// the values of the format. Every other event ends the parsing, so that hostile nesting takes no
// memory.
class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<RawTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::string problem;

  bool null() override { return Stop("a null"); }
  bool boolean(bool) override { return Stop("a boolean"); }
  bool number_integer(number_integer_t) override { return Stop("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Stop("a fraction, or a number that is too large");
  }
  bool binary(binary_t&) override { return Stop("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!numbers_) return Stop("a number in an unexpected place");
    numbers_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      return metadata.emplace(key_, value).second || Stop("a metadata key twice");
    }
    if (state_ != State::kTensor || key_ != "dtype" || numbers_) {
      return Stop("a string in an unexpected place");
    }
    if (tensors.back().dtype) return Stop("a dtype twice");
    tensors.back().dtype = value;
    return true;
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kOutside:
        state_ = State::kTop;
        return true;
      case State::kTop:
        if (key_ == kMetadataKey) {
          state_ = State::kMetadata;
        } else {
          state_ = State::kTensor;
          tensors.push_back({.name = key_});
        }
        return true;
      default:
        return Stop("an object in an unexpected place");
    }
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      const RawTensor& tensor = tensors.back();
      if (!tensor.dtype || !tensor.shape || !tensor.data_offsets) {
        return Stop(fmt::format("tensor '{}' without dtype, shape or data_offsets", tensor.name));
      }
    }
    state_ = state_ == State::kTop ? State::kDone : State::kTop;
    return true;
  }

  bool key(string_t& value) override {
    if (state_ == State::kTop && !names_.insert(value).second) {
      return Stop(fmt::format("the name '{}' twice", value));
    }
    key_ = value;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || numbers_) return Stop("a list in an unexpected place");
    std::optional<std::vector<uint64_t>>* list = nullptr;
    if (key_ == "shape") list = &tensors.back().shape;
    if (key_ == "data_offsets") list = &tensors.back().data_offsets;
    if (list == nullptr || list->has_value()) return Stop("a list in an unexpected place");
    numbers_ = &list->emplace();
    return true;
  }

  bool end_array() override {
    numbers_ = nullptr;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    problem = fmt::format("the header is not JSON from byte {} on", position);
    return false;
  }

 private:
  enum class State { kOutside, kTop, kMetadata, kTensor, kDone };

  bool Stop(std::string what) {
    problem = "the header contains " + std::move(what);
    return false;
  }

  State state_ = State::kOutside;
  std::string key_;
  std::unordered_set<std::string> names_;
  std::vector<uint64_t>* numbers_ = nullptr;
};

Result<SafetensorsHeader::Tensor> CheckTensor(RawTensor raw, uint64_t data_bytes) {
  SafetensorsHeader::Tensor tensor{.name = std::move(raw.name)};
  const auto damaged = [&](std::string why) {
    return Damaged(fmt::format("tensor '{}': {}", tensor.name, why));
  };
  const auto dtype = FindSafetensorsDType(*raw.dtype);
  if (!dtype) {
    return Fail(ErrorCode::kUnimplemented,
                fmt::format("tensor '{}' has dtype '{}', which this version does not know",
                            tensor.name, *raw.dtype));
  }
  tensor.dtype = *dtype;
  tensor.shape = *std::move(raw.shape);
  if (*dtype == DType::kFloat4E2M1FNx2) {
    if (tensor.shape.empty() || tensor.shape.back() % 2 != 0) {
      return damaged("its 4-bit elements do not fill whole bytes");
    }
    tensor.shape.back() /= 2;
  }
  if (raw.data_offsets->size() != 2) return damaged("its data_offsets are not two numbers");
  tensor.begin_bytes = raw.data_offsets->front();
  tensor.end_bytes = raw.data_offsets->back();
  if (tensor.begin_bytes > tensor.end_bytes || tensor.end_bytes > data_bytes) {
    return damaged(fmt::format("its bytes [{}, {}) extend beyond the {} of the file",
                               tensor.begin_bytes, tensor.end_bytes, data_bytes));
  }
  const auto nbytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!nbytes || *nbytes != tensor.end_bytes - tensor.begin_bytes) {
    return damaged(fmt::format("its {} bytes do not agree with {} of shape [{}]",
                               tensor.end_bytes - tensor.begin_bytes, *raw.dtype,
                               fmt::join(tensor.shape, ", ")));
  }
  return tensor;
}

void SortByPosition(std::vector<SafetensorsHeader::Tensor>& tensors) {
  std::ranges::sort(tensors, {}, [](const SafetensorsHeader::Tensor& tensor) {
    return std::tuple(tensor.begin_bytes, tensor.end_bytes, std::string_view(tensor.name));
  });
}

// Requires tensors that are sorted by position.
Result<void> CheckContiguous(std::span<const SafetensorsHeader::Tensor> tensors,
                             uint64_t data_bytes) {
  uint64_t end = 0;
  for (const auto& tensor : tensors) {
    if (tensor.begin_bytes != end) {
      return Damaged(fmt::format("tensor '{}' begins at byte {} instead of {}: {}", tensor.name,
                                 tensor.begin_bytes, end,
                                 tensor.begin_bytes < end ? "tensors overlap" : "there is a hole"));
    }
    end = tensor.end_bytes;
  }
  if (end == data_bytes) return {};
  return Damaged(
      fmt::format("{} bytes follow the last tensor, which ends at byte {} of the data: "
                  "the file is longer than its header states",
                  data_bytes - end, end));
}

using Json = nlohmann::ordered_json;

// Appends a member to an object. `Json::operator[]` compares the key with all keys before it, which
// would make a header of many tensors quadratic.
void AppendMember(Json& object, std::string key, Json value) {
  object.get_ref<Json::object_t&>().Json::object_t::Container::emplace_back(std::move(key),
                                                                            std::move(value));
}

// The tensors of a header with their positions. Requires distinct names.
Result<SafetensorsHeader> LayOut(std::span<const SafetensorsEntry> entries,
                                 const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  std::unordered_set<std::string_view> names;
  uint64_t offset = 0;
  for (const SafetensorsEntry& entry : entries) {
    const auto invalid = [&](std::string why) {
      return Fail(
          Error{.code = ErrorCode::kInvalidArgument, .message = std::move(why), .key = entry.name});
    };
    CAIRN_TRY(CheckSafetensorsDType(entry.name, entry.dtype));
    if (entry.name == kMetadataKey || !names.insert(entry.name).second) {
      return invalid("safetensors files cannot hold this name, or it occurs twice");
    }
    if (entry.dtype == DType::kFloat4E2M1FNx2 &&
        (entry.shape.empty() || entry.shape.back() > ~uint64_t{0} / 2)) {
      return invalid("safetensors files cannot hold 4-bit floats of this shape");
    }
    CAIRN_TRY_ASSIGN(const uint64_t nbytes, TensorBytes(entry.dtype, entry.shape));
    SafetensorsHeader::Tensor tensor{
        .name = entry.name, .dtype = entry.dtype, .shape = entry.shape, .begin_bytes = offset};
    if (__builtin_add_overflow(offset, nbytes, &offset)) {
      return invalid("the tensors have too many bytes in total");
    }
    tensor.end_bytes = offset;
    header.tensors.push_back(std::move(tensor));
  }
  return header;
}

Json ToJson(const SafetensorsHeader& header) {
  Json json = Json::object();
  json.get_ref<Json::object_t&>().reserve(header.tensors.size() + 1);
  if (!header.metadata.empty()) {
    Json metadata = Json::object();
    for (const auto& [key, value] : header.metadata) AppendMember(metadata, key, value);
    AppendMember(json, std::string(kMetadataKey), std::move(metadata));
  }
  for (const SafetensorsHeader::Tensor& tensor : header.tensors) {
    Shape shape = tensor.shape;
    if (tensor.dtype == DType::kFloat4E2M1FNx2) shape.back() *= 2;
    Json description = Json::object();
    AppendMember(description, "dtype", *SafetensorsName(tensor.dtype));
    AppendMember(description, "shape", std::move(shape));
    AppendMember(description, "data_offsets", {tensor.begin_bytes, tensor.end_bytes});
    AppendMember(json, tensor.name, std::move(description));
  }
  return json;
}

}  // namespace

Result<SafetensorsHeader> DecodeSafetensorsHeader(std::string_view json, uint64_t data_bytes) {
  if (!json.starts_with('{')) return Damaged("the header does not begin with '{'");
  Handler handler;
  const bool is_parsed = nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  if (!is_parsed) return Damaged(handler.problem);
  SafetensorsHeader header{.tensors = {}, .metadata = std::move(handler.metadata)};
  header.tensors.reserve(handler.tensors.size());
  for (RawTensor& raw : handler.tensors) {
    CAIRN_TRY_ASSIGN(auto tensor, CheckTensor(std::move(raw), data_bytes));
    header.tensors.push_back(std::move(tensor));
  }
  SortByPosition(header.tensors);
  CAIRN_TRY(CheckContiguous(header.tensors, data_bytes));
  return header;
}

Result<EncodedSafetensorsHeader> EncodeSafetensorsHeader(
    std::span<const SafetensorsEntry> entries, const std::map<std::string, std::string>& metadata) {
  CAIRN_TRY_ASSIGN(SafetensorsHeader header, LayOut(entries, metadata));
  EncodedSafetensorsHeader encoded;
  if (!header.tensors.empty()) encoded.data_bytes = header.tensors.back().end_bytes;
  try {
    // Strict: lone surrogates and other bytes that are not UTF-8 have no place in JSON.
    encoded.json = ToJson(header).dump(-1, ' ', false, Json::error_handler_t::strict);
  } catch (const Json::exception&) {
    return Fail(ErrorCode::kInvalidArgument,
                "a key is not valid UTF-8; safetensors files cannot hold it");
  }
  while (encoded.json.size() % 8 != 0) encoded.json += ' ';
  if (encoded.json.size() > kMaxSafetensorsHeaderBytes) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the header would have {} bytes, but the format allows {}; export fewer keys",
                    encoded.json.size(), kMaxSafetensorsHeaderBytes));
  }
  SortByPosition(header.tensors);
  const auto decoded = DecodeSafetensorsHeader(encoded.json, encoded.data_bytes);
  CAIRN_CHECK(decoded && *decoded == header);
  return encoded;
}

}  // namespace cairn::core::internal
