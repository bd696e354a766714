// Each rule replaces the list of keys by another one. The maps of the pieces are composed on the
// way, so that the final list refers to the stored tensors, however many rules there are.

#include "core/convert/converted_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/convert/internal/rule.h"
#include "core/convert/internal/shape_rules.h"
#include "core/tensor/element_cast.h"

namespace cairn::core {
namespace {

using internal::NamePattern;
using internal::Rule;
using internal::RuleKind;

// A hostile shape must not lead to endless lists.
constexpr size_t kMaxKeys = 16 << 20;

std::string NoCast(DType from, DType to) {
  return fmt::format("there is no conversion from {} to {}", schema::DTypeName(from),
                     schema::DTypeName(to));
}

class RuleRun {
 public:
  explicit RuleRun(std::span<const SourceKey> sources) : sources_(sources) {
    keys_.reserve(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) keys_.push_back(FromSource(i));
  }

  Result<void> Apply(const Rule& rule) {
    next_.clear();
    is_used_.assign(keys_.size(), false);
    Result<void> applied = Dispatch(rule);
    if (!applied) return applied;
    keys_ = std::move(next_);
    return CheckNames(rule);
  }

  Result<void> CastAll(const KeyCasts& casts) {
    for (ConvertedKey& key : keys_) {
      const auto found = casts.by_key.find(key.fqn);
      DType dtype = key.dtype;
      if (found != casts.by_key.end()) {
        dtype = found->second;
      } else if (casts.floats && IsCastable(key.dtype)) {
        dtype = *casts.floats;
      }
      if (!key.is_tensor || dtype == key.dtype) continue;
      for (const SourcePiece& piece : key.pieces) {
        const DType stored = sources_[piece.source].dtype;
        if (stored == dtype || FindElementCast(stored, dtype) != nullptr) continue;
        return Fail(Error{
            .code = ErrorCode::kInvalidArgument, .message = NoCast(stored, dtype), .key = key.fqn});
      }
      key.dtype = dtype;
    }
    return {};
  }

  std::vector<ConvertedKey> Take() && { return std::move(keys_); }

 private:
  ConvertedKey FromSource(size_t i) const {
    const SourceKey& source = sources_[i];
    ConvertedKey key{.fqn = source.fqn,
                     .is_tensor = source.is_tensor,
                     .source = i,
                     .dtype = source.dtype,
                     .shape = source.shape,
                     .pieces = {}};
    const bool is_empty = std::ranges::find(source.shape, uint64_t{0}) != source.shape.end();
    if (source.is_tensor && !is_empty) {
      key.pieces.push_back({.source = i, .map = IdentityMap(source.shape), .scale = {}});
    }
    return key;
  }

  Result<void> Dispatch(const Rule& rule) {
    switch (rule.kind) {
      case RuleKind::kRename:
        return Rename(rule);
      case RuleKind::kConcat:
        return Concat(rule);
      case RuleKind::kStack:
        return Stack(rule);
      case RuleKind::kDequantize:
        return Dequantize(rule);
      default:
        break;
    }
    for (ConvertedKey& key : keys_) {
      const auto names = rule.patterns[0].Derive(key.fqn);
      if (!names) {
        next_.push_back(std::move(key));
        continue;
      }
      if (rule.kind == RuleKind::kDrop) continue;
      CAIRN_TRY(CheckTensor(rule, key));
      CAIRN_TRY(ApplyToOne(rule, std::move(key), *names));
    }
    return {};
  }

  Result<void> ApplyToOne(const Rule& rule, ConvertedKey key,
                          const std::vector<std::string>& names) {
    switch (rule.kind) {
      case RuleKind::kSplit:
        return internal::Split(rule, std::move(key), names, next_);
      case RuleKind::kUnstack:
        return internal::Unstack(rule, std::move(key), names[0], next_);
      case RuleKind::kPermute:
        CAIRN_TRY(internal::Permute(rule, key));
        break;
      case RuleKind::kRearrange:
        CAIRN_TRY(internal::Rearrange(rule, key));
        break;
      default:  // kCast
        CAIRN_TRY(SetDType(rule, key, rule.dtype));
        break;
    }
    next_.push_back(std::move(key));
    return {};
  }

  static Result<void> CheckTensor(const Rule& rule, const ConvertedKey& key) {
    if (key.is_tensor) return {};
    return rule.Fails("it matches a plain value, which can only be renamed or dropped", key.fqn);
  }

  Result<void> SetDType(const Rule& rule, ConvertedKey& key, DType dtype) const {
    for (const SourcePiece& piece : key.pieces) {
      const DType stored = sources_[piece.source].dtype;
      if (stored != dtype && FindElementCast(stored, dtype) == nullptr) {
        return rule.Fails(NoCast(stored, dtype), key.fqn);
      }
    }
    key.dtype = dtype;
    return {};
  }

  Result<void> Rename(const Rule& rule) {
    for (ConvertedKey& key : keys_) {
      const NamePattern* matched = nullptr;
      std::string renamed = key.fqn;
      for (const NamePattern& pattern : rule.patterns) {
        const auto names = pattern.Derive(key.fqn);
        if (!names) continue;
        if (matched != nullptr) {
          return rule.Fails(fmt::format("the key matches '{}' and '{}'; make the expressions "
                                        "disjoint",
                                        matched->text, pattern.text),
                            key.fqn);
        }
        matched = &pattern;
        renamed = names->front();
      }
      if (renamed.empty() && matched != nullptr) {
        return rule.Fails("the new name is empty", key.fqn);
      }
      key.fqn = std::move(renamed);
      next_.push_back(std::move(key));
    }
    return {};
  }

  Result<void> Concat(const Rule& rule) {
    IndexNames();
    std::unordered_map<size_t, size_t> made_at;  // first part -> index in made
    std::vector<ConvertedKey> made;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto names = rule.patterns[0].Derive(keys_[i].fqn);
      if (!names) continue;
      std::vector<size_t> parts{i};
      for (size_t n = 1; n < names->size(); ++n) {
        const auto found = by_name_.find((*names)[n]);
        if (found == by_name_.end()) {
          return rule.Fails(fmt::format("there is no '{}' to concatenate", (*names)[n]),
                            keys_[i].fqn);
        }
        parts.push_back(found->second);
      }
      for (const size_t part : parts) {
        if (is_used_[part]) {
          return rule.Fails("the key would be a part of two tensors", keys_[part].fqn);
        }
        is_used_[part] = true;
      }
      CAIRN_TRY_ASSIGN(ConvertedKey joined, Join(rule, parts, (*names)[0], /*stacks=*/false));
      made_at[i] = made.size();
      made.push_back(std::move(joined));
    }
    Replace(made_at, made);
    return {};
  }

  Result<void> Stack(const Rule& rule) {
    struct Group {
      std::vector<std::pair<uint64_t, size_t>> parts;  // position and key
    };
    std::vector<Group> groups;
    std::unordered_map<std::string, size_t> by_target;
    std::vector<std::string> targets;
    for (size_t i = 0; i < keys_.size(); ++i) {
      std::string digits;
      const auto names = rule.patterns[0].Derive(keys_[i].fqn, rule.group, &digits);
      if (!names) continue;
      const auto position = internal::ParsePosition(digits);
      if (!position) {
        return rule.Fails(fmt::format("'{}' is not the position of a part", digits), keys_[i].fqn);
      }
      const auto [found, is_new] = by_target.try_emplace(names->front(), groups.size());
      if (is_new) {
        groups.emplace_back();
        targets.push_back(names->front());
      }
      groups[found->second].parts.emplace_back(*position, i);
      is_used_[i] = true;
    }
    std::unordered_map<size_t, size_t> made_at;
    std::vector<ConvertedKey> made;
    for (size_t g = 0; g < groups.size(); ++g) {
      auto& parts = groups[g].parts;
      const size_t place = std::ranges::min(parts, {}, &std::pair<uint64_t, size_t>::second).second;
      std::ranges::sort(parts);
      std::vector<size_t> members;
      for (const auto& [position, key] : parts) {
        if (position != members.size()) {
          return rule.Fails(fmt::format("the parts of '{}' do not have the positions 0 to {}: "
                                        "position {} is missing or there twice",
                                        targets[g], parts.size() - 1, members.size()),
                            keys_[key].fqn);
        }
        members.push_back(key);
      }
      CAIRN_TRY_ASSIGN(ConvertedKey joined, Join(rule, members, targets[g], /*stacks=*/true));
      made_at[place] = made.size();
      made.push_back(std::move(joined));
    }
    Replace(made_at, made);
    return {};
  }

  Result<ConvertedKey> Join(const Rule& rule, const std::vector<size_t>& parts, std::string name,
                            bool stacks) {
    std::vector<ConvertedKey> keys;
    for (const size_t part : parts) {
      CAIRN_TRY(CheckTensor(rule, keys_[part]));
      keys.push_back(keys_[part]);
    }
    return stacks ? internal::Stack(rule, std::move(keys), std::move(name))
                  : internal::Concat(rule, std::move(keys), std::move(name));
  }

  Result<void> Dequantize(const Rule& rule) {
    IndexNames();
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto names = rule.patterns[0].Derive(keys_[i].fqn);
      if (!names) continue;
      const auto found = by_name_.find(names->front());
      if (found == by_name_.end()) {
        return rule.Fails(fmt::format("there is no weight '{}'", names->front()), keys_[i].fqn);
      }
      ConvertedKey& weight = keys_[found->second];
      CAIRN_TRY(CheckTensor(rule, keys_[i]));
      CAIRN_TRY(CheckTensor(rule, weight));
      CAIRN_TRY(internal::CheckScale(rule, weight, keys_[i], sources_));
      CAIRN_TRY(SetDType(rule, weight, rule.dtype));
      weight.is_whole = false;
      for (SourcePiece& piece : weight.pieces) {
        piece.scale = SourcePiece::BlockScale{.source = keys_[i].source, .block = rule.block};
      }
      is_used_[i] = true;
    }
    Replace({}, {});
    return {};
  }

  // Moves the keys that were not used to next_, and what was made of others to the place of its
  // first part.
  void Replace(const std::unordered_map<size_t, size_t>& made_at, std::vector<ConvertedKey> made) {
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto found = made_at.find(i);
      if (found != made_at.end()) {
        made[found->second].source = keys_[i].source;
        next_.push_back(std::move(made[found->second]));
      } else if (!is_used_[i]) {
        next_.push_back(std::move(keys_[i]));
      }
    }
  }

  void IndexNames() {
    by_name_.clear();
    for (size_t i = 0; i < keys_.size(); ++i) by_name_.emplace(keys_[i].fqn, i);
  }

  Result<void> CheckNames(const Rule& rule) {
    if (keys_.size() > kMaxKeys) return rule.Fails("it makes too many keys");
    std::unordered_map<std::string_view, size_t> seen;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto [found, is_new] = seen.try_emplace(keys_[i].fqn, i);
      if (is_new) continue;
      return rule.Fails(
          fmt::format("'{}' and '{}' would have the same name",
                      sources_[keys_[found->second].source].fqn, sources_[keys_[i].source].fqn),
          keys_[i].fqn);
    }
    return {};
  }

  std::span<const SourceKey> sources_;
  std::vector<ConvertedKey> keys_;
  std::vector<ConvertedKey> next_;                   // the result of the rule
  std::vector<bool> is_used_;                        // keys_ that are parts of others
  std::unordered_map<std::string, size_t> by_name_;  // in keys_
};

}  // namespace

bool IsCastable(DType dtype) {
  return dtype == DType::kFloat32 || FindElementCast(dtype, DType::kFloat32) != nullptr;
}

Result<std::vector<ConvertedKey>> ConvertKeys(std::span<const SourceKey> sources,
                                              const ConversionRules& rules, const KeyCasts& casts) {
  RuleRun run(sources);
  for (const Rule& rule : rules.list().rules) CAIRN_TRY(run.Apply(rule));
  CAIRN_TRY(run.CastAll(casts));
  return std::move(run).Take();
}

}  // namespace cairn::core
