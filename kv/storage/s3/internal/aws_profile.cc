// The INI dialect of AWS, and the places of the files.

#include "kv/storage/s3/internal/aws_profile.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "kv/io/internal/io_environment.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kMaxFileBytes = 4 << 20;

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::string ExpandHome(std::string path, const Environment& environment) {
  if (!path.starts_with("~/")) return path;
  std::string home = environment("HOME");
  const passwd* user = home.empty() ? ::getpwuid(::getuid()) : nullptr;
  if (user != nullptr && user->pw_dir != nullptr) home = user->pw_dir;
  return home + path.substr(1);
}

// "# ..." and "; ..." are comments at the beginning of a line, and after a value if white space
// precedes them.
std::string_view WithoutComment(std::string_view value) {
  for (size_t i = 1; i < value.size(); ++i) {
    const bool after_space = value[i - 1] == ' ' || value[i - 1] == '\t';
    if (after_space && (value[i] == '#' || value[i] == ';')) return Trim(value.substr(0, i));
  }
  return value;
}

// Returns the name in "[name]".
std::string SectionName(std::string_view line) {
  const size_t end = line.find(']');
  const std::string_view name = Trim(line.substr(1, end == std::string_view::npos ? end : end - 1));
  // "profile  x" and "profile x" are the same.
  const size_t space = name.find_first_of(" \t");
  if (space == std::string_view::npos) return std::string(name);
  return fmt::format("{} {}", name.substr(0, space), Trim(name.substr(space)));
}

// Adds the settings of a section with `prefix` before their names.
void Merge(const AwsSections& sections, const std::string& section, const char* prefix,
           AwsProfile* profile) {
  const auto found = sections.find(section);
  if (found == sections.end()) return;
  profile->exists = true;
  for (const auto& [name, value] : found->second) profile->settings[prefix + name] = value;
}

}  // namespace

Result<std::string> ReadTextFile(const std::string& path, std::string_view what) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) {
    if (errno == ENOENT || errno == ENOTDIR) return std::string();
    return Fail(SystemError(errno, fmt::format("cannot read the {}", what), path));
  }
  std::string text;
  char buffer[4096];
  while (const size_t length = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, length);
    if (text.size() > kMaxFileBytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("the {} has more than {} bytes", what, kMaxFileBytes), path);
    }
  }
  if (std::ferror(file.get()) != 0) {
    return Fail(SystemError(EIO, fmt::format("cannot read the {}", what), path));
  }
  return text;
}

std::string ProcessEnvironment(const char* name) { return std::string(EnvironmentVariable(name)); }

std::string AwsProfile::Get(std::string_view setting) const {
  const auto found = settings.find(setting);
  return found == settings.end() ? std::string() : found->second;
}

AwsSections ParseAwsSections(std::string_view text) {
  AwsSections sections;
  std::map<std::string, std::string, std::less<>>* settings = nullptr;
  std::string group;  // the setting to which indented lines belong
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view content = Trim(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    const bool indented = line.front() == ' ' || line.front() == '\t';
    if (!indented && content.front() == '[') {
      settings = &sections[SectionName(content)];
      group.clear();
      continue;
    }
    const size_t equals = content.find('=');
    if (settings == nullptr || equals == std::string_view::npos) continue;
    const std::string name(Trim(content.substr(0, equals)));
    const std::string value(WithoutComment(Trim(content.substr(equals + 1))));
    if (indented && !group.empty()) {
      (*settings)[group + "." + name] = value;
      continue;
    }
    group = value.empty() ? name : "";
    (*settings)[name] = value;
  }
  return sections;
}

Result<AwsProfile> ReadAwsProfile(const std::string& name, const Environment& environment) {
  const std::string named = !name.empty() ? name : environment("AWS_PROFILE");
  AwsProfile profile;
  profile.name = named.empty() ? "default" : named;
  const auto path_of = [&](const char* variable, const char* file) {
    const std::string path = environment(variable);
    return ExpandHome(path.empty() ? std::string("~/.aws/") + file : path, environment);
  };
  const std::string config_path = path_of("AWS_CONFIG_FILE", "config");
  const std::string credentials_path = path_of("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  CAIRN_TRY_ASSIGN(const std::string config_text, ReadTextFile(config_path, "AWS configuration"));
  CAIRN_TRY_ASSIGN(const std::string credentials_text,
                   ReadTextFile(credentials_path, "AWS configuration"));

  const AwsSections config = ParseAwsSections(config_text);
  if (profile.name == "default") Merge(config, "default", "", &profile);
  Merge(config, "profile " + profile.name, "", &profile);
  Merge(config, "services " + profile.Get("services"), "services.", &profile);
  Merge(ParseAwsSections(credentials_text), profile.name, "", &profile);
  if (!profile.exists && !named.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("there is no AWS profile \"{}\" in {} and {}; correct the profile or "
                            "AWS_PROFILE",
                            profile.name, config_path, credentials_path));
  }
  return profile;
}

}  // namespace cairn::kv::internal
