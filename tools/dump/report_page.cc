#include "tools/dump/report_page.h"

namespace cairn::tools {

std::string DataInScript(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    // These characters occur only in strings, where JSON allows escapes.
    const std::string_view rest = json.substr(i);
    if (json[i] == '<') {
      text += "\\u003c";
    } else if (json[i] == '>') {
      text += "\\u003e";
    } else if (json[i] == '&') {
      text += "\\u0026";
    } else if (rest.starts_with("\u2028") || rest.starts_with("\u2029")) {
      text += rest.starts_with("\u2028") ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      text += json[i];
    }
  }
  return text;
}

std::string ReportPage(std::string_view json) {
  std::string page(kPageBeforeData);
  page += DataInScript(json);
  page += kPageAfterData;
  return page;
}

std::string LivePage(std::string_view json) {
  static constexpr std::string_view kForbidden = "connect-src 'none'";
  std::string page = ReportPage(json);
  page.replace(page.find(kForbidden), kForbidden.size(), "connect-src 'self'");
  return page;
}

}  // namespace cairn::tools
