#include "tools/dump/change_kind.h"

#include <string>

namespace cairn::tools {

using Kind = core::KeyChange::Kind;

std::string_view KindName(Kind kind) {
  switch (kind) {
    case Kind::kAdded:
      return "added";
    case Kind::kRemoved:
      return "removed";
    case Kind::kChanged:
      return "changed";
  }
  return "changed";
}

Cell KindCell(Kind kind) {
  const Style style = kind == Kind::kAdded     ? Style::kGreen
                      : kind == Kind::kRemoved ? Style::kRed
                                               : Style::kYellow;
  return Cell(std::string(KindName(kind)), style);
}

}  // namespace cairn::tools
