#include "client/rrctl/completion.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace routing_replay::client {
namespace {

std::vector<const CLI::Option*> Options(const CLI::App& app) { return app.get_options(); }

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// The words of a type like "TEXT:{table,json}".
std::vector<std::string> WordsOfType(absl::string_view type) {
  const size_t open = type.find('{');
  const size_t close = type.find('}');
  if (open == absl::string_view::npos || close == absl::string_view::npos || close < open) return {};
  return absl::StrSplit(type.substr(open + 1, close - open - 1), ',');
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

class Completer {
 public:
  Completer(const CLI::App& app, const NameSource& names) : app_(app), names_(names) {}

  Completions Run(const std::vector<std::string>& words) {
    if (words.empty()) return {};
    for (size_t i = 0; i + 1 < words.size(); ++i) Take(words[i]);
    Answer(words.back());
    return std::move(found_);
  }

 private:
  // The option that is written so, here or, behind a command, of the program.
  const CLI::Option* FindOption(const std::string& name) const {
    for (const CLI::App* app : {command_, &app_}) {
      if (app == nullptr) continue;
      if (const CLI::Option* option = app->get_option_no_throw(name); option != nullptr) return option;
    }
    return nullptr;
  }

  // The argument at the present position; the last one if it takes several words.
  const CLI::Option* Argument() const {
    if (command_ == nullptr) return nullptr;
    int left = position_;
    for (const CLI::Option* option : Options(*command_)) {
      if (!option->get_positional()) continue;
      left -= std::max(1, option->get_items_expected_max());
      if (left < 0) return option;
    }
    return nullptr;
  }

  void Take(const std::string& word) {
    if (pending_ != nullptr) {
      words_[pending_->get_name()].push_back(word);
      pending_ = nullptr;
    } else if (!only_arguments_ && word == "--") {
      only_arguments_ = true;
    } else if (!only_arguments_ && word.size() > 1 && word[0] == '-') {
      TakeOption(word);
    } else if (command_ == nullptr) {
      for (const CLI::App* command : Commands(app_)) {
        if (command->get_name() == word) command_ = command;
      }
    } else {
      if (const CLI::Option* argument = Argument(); argument != nullptr) {
        words_[argument->get_name()].push_back(word);
      }
      ++position_;
    }
  }

  void TakeOption(const std::string& word) {
    const std::vector<std::string> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    const CLI::Option* option = FindOption(parts[0]);
    if (option == nullptr) return;
    std::vector<std::string>& values = words_[option->get_name()];
    if (parts.size() == 2) {
      values.push_back(parts[1]);
    } else if (option->get_items_expected_max() > 0) {
      pending_ = option;
    }
  }

  void Answer(const std::string& word) {
    const size_t equals = word.find('=');
    if (pending_ != nullptr) {
      AddValues(*pending_, "", word);
    } else if (!only_arguments_ && absl::StartsWith(word, "-") && equals != std::string::npos) {
      const CLI::Option* option = FindOption(word.substr(0, equals));
      if (option != nullptr) AddValues(*option, word.substr(0, equals + 1), word);
    } else if (!only_arguments_ && absl::StartsWith(word, "-")) {
      AddOptions(word);
    } else if (command_ == nullptr) {
      for (const CLI::App* command : Commands(app_)) Add(command->get_name(), command->get_description(), word);
    } else if (const CLI::Option* argument = Argument(); argument != nullptr) {
      AddValues(*argument, "", word);
    }
  }

  void AddOptions(const std::string& word) {
    for (const CLI::App* app : {command_, &app_}) {
      if (app == nullptr) continue;
      for (const CLI::Option* option : Options(*app)) {
        if (!option->nonpositional() || words_.count(option->get_name()) > 0) continue;
        for (const std::string& name : option->get_lnames()) Add("--" + name, option->get_description(), word);
        for (const std::string& name : option->get_snames()) Add("-" + name, option->get_description(), word);
      }
    }
  }

  void AddValues(const CLI::Option& option, const std::string& before, const std::string& word) {
    const std::string type = option.get_type_name();
    const std::vector<std::string> set = WordsOfType(type);
    for (const std::string& value : set) Add(before + value, "", word);
    if (!set.empty()) return;
    if (option.get_name() == "FILE" || option.get_name() == "DIR" || type == "FILE") {
      found_.files = true;
    } else if (option.get_positional() || type == "RUN") {
      for (const std::string& name : names_(option.get_positional() ? option.get_name() : type, words_)) {
        Add(before + name, "", word);
      }
    }
  }

  // `value` if `word` is how it begins, once.
  void Add(const std::string& value, const std::string& description, const std::string& word) {
    const Candidate candidate{value, FirstLine(description)};
    auto& all = found_.candidates;
    if (absl::StartsWith(value, word) && std::find(all.begin(), all.end(), candidate) == all.end()) {
      all.push_back(candidate);
    }
  }

  const CLI::App& app_;
  const NameSource& names_;
  const CLI::App* command_ = nullptr;
  const CLI::Option* pending_ = nullptr;  // Its value is the next word.
  bool only_arguments_ = false;           // Behind "--".
  int position_ = 0;                      // Arguments of the command so far.
  WordsByName words_;
  Completions found_;
};

constexpr char kBash[] = R"(# rrctl completion for bash; load it with: source <(rrctl completion bash)
_rrctl() {
  local -a words
  local current kept value description
  read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
  [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=("")
  while [[ ${#words[@]} -gt 1 && ${words[0]} != "$1" ]]; do words=("${words[@]:1}"); done
  current=${words[-1]}
  # Bash starts a new word at each of these and replaces only what is behind the last of them.
  kept=${current%"${current##*["${COMP_WORDBREAKS//[^:=]/}"]}"}
  COMPREPLY=()
  while IFS=$'\t' read -r value description; do
    if [[ $value == :files ]]; then
      compopt -o filenames 2>/dev/null
      while read -r value; do COMPREPLY+=("$value"); done < <(compgen -f -- "${current#"$kept"}")
    else
      COMPREPLY+=("${value#"$kept"}")
    fi
  done < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
}
complete -F _rrctl rrctl
)";

constexpr char kZsh[] = R"(#compdef rrctl
# rrctl completion for zsh; load it with: source <(rrctl completion zsh)
_rrctl() {
  local -a candidates
  local line value description
  for line in "${(@f)$(${~words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    if [[ $line == :files ]]; then
      _files
    elif [[ -n $line ]]; then
      value=${line%%$'\t'*}
      description=${line#*$'\t'}
      candidates+=("${value//:/\\:}${description:+:$description}")
    fi
  done
  _describe -V rrctl candidates
}
if [[ $funcstack[1] == _rrctl ]]; then _rrctl; else compdef _rrctl rrctl; fi
)";

constexpr char kFish[] = R"(# rrctl completion for fish; load it with: rrctl completion fish | source
function __rrctl_complete
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  for line in (eval $words[1] __complete (string escape -- $words[2..] "$current") 2>/dev/null)
    if test "$line" = :files
      __fish_complete_path "$current"
    else
      echo $line
    end
  end
end
complete -c rrctl -f -a '(__rrctl_complete)'
)";

}  // namespace

Completions Complete(const CLI::App& app, const std::vector<std::string>& words, const NameSource& names) {
  return Completer(app, names).Run(words);
}

std::string CompletionLines(const Completions& completions) {
  std::string lines;
  for (const Candidate& candidate : completions.candidates) {
    absl::StrAppend(&lines, candidate.value, "\t", candidate.description, "\n");
  }
  if (completions.files) absl::StrAppend(&lines, ":files\n");
  return lines;
}

absl::StatusOr<std::string> CompletionScript(absl::string_view shell) {
  if (shell == "bash") return std::string(kBash);
  if (shell == "zsh") return std::string(kZsh);
  if (shell == "fish") return std::string(kFish);
  return absl::InvalidArgumentError(absl::StrCat("no completion for ", shell));
}

}  // namespace routing_replay::client
